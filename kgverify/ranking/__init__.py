"""Ranking: seeded, filtered corruptions; tie-aware ranks; MRR and Hits@k.

Internal: it may change without notice. Users import from `kgverify` itself.
"""
