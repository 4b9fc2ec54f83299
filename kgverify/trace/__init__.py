"""Internal: recorded steps in HDF5 files; `docs/trace-format.md` specifies the format."""
