"""Comparing two traces: align, compare field by field, find the first divergence, give a verdict."""
