"""The tick as Triton kernels that work in place, where stages are as they are."""
