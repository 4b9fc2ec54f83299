"""Rank test triples with TorchMetrics: one ranking at a time, positive scores, ties in any order."""

import torch
from candidates import list_candidates
from torchmetrics.functional.retrieval import retrieval_reciprocal_rank


def find_ranks(scores, tests, known, batch_size):
    """Return the ranks of the test triples, by side and by the way of ties."""
    ranks = {("head", "any"): [], ("tail", "any"): []}
    for side, true, others in list_candidates(scores.astype("float64") - scores.min() + 1, tests, known):
        is_true = torch.arange(1 + len(others)) == 0
        ranks[side, "any"].append(float(1 / retrieval_reciprocal_rank(torch.tensor([true, *others]), is_true)))
    return ranks
