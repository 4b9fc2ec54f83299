"""Engines prove candidates: their protocol, the adapter to the reference prover, the compiled evaluator."""
