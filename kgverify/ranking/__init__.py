"""Ranking: seeded, filtered corruptions; tie-aware ranks; MRR and Hits@k."""
