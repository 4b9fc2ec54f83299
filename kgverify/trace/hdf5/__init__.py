"""Trace files as HDF5."""
