"""The vocabulary of a proof step: atoms, clauses, programs, stages, outcomes, limits.

Internal: it may change without notice. Users import from `kgverify` itself.
"""
