"""Comparing two traces: align, compare field by field, find the first divergence, give a verdict.

Internal: it may change without notice. Users import from `kgverify` itself.
"""
