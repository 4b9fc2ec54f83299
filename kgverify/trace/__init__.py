"""Internal: recorded steps in HDF5 files; `docs/traces.md` specifies the format."""
