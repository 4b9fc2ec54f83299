"""Engines: what proves candidates. A protocol, an adapter to the reference prover, the compiled evaluator.

Internal: it may change without notice. Users import from `kgverify` itself.
"""
