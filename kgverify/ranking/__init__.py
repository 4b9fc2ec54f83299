"""From candidates to ranks and metrics: seeded, filtered corruptions; tie-aware ranks; MRR and Hits@k."""
