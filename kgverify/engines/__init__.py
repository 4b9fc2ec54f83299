"""Engines: what proves candidates. A protocol, an adapter to the reference prover, the compiled evaluator."""
