"""The tick as Triton kernels that work in place and replace the sound stages."""
