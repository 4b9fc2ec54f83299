"""Engines prove candidates: their protocol, the adapter to the reference prover, the compiled evaluator.

Internal: it may change without notice. Users import from `kgverify` itself.
"""
