"""Traces: what an engine did, step by step, in memory and on disk."""
