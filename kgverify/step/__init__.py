"""One step of a prover in plain Python: the clauses of a program, and the stages of docs/semantics.md as functions.

Internal: it may change without notice. Users import from `kgverify` itself.
"""
