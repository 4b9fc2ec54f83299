"""Planted faults: each replaces a stage of the compiled evaluator by one that is wrong in a known way."""
