"""Inference from recorded steps: the clauses that made resolvents, the stage of a difference, and its condition."""
