"""Training: a `two_tower` policy that imitates the proofs found by a search over the reference prover's steps.

Internal: it may change without notice. Users import from `kgverify` itself.
"""
