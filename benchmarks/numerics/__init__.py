"""Determinism and precision of the compiled evaluator, measured on the states that a run reaches."""
