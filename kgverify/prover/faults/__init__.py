"""Planted faults: each replaces a stage of the compiled evaluator by a stage that is wrong in a known way.

Internal: it may change without notice. Users import from `kgverify` itself.
"""
