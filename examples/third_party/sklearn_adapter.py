"""Rank test triples with scikit-learn's coverage error: one ranking at a time, ties counted as higher.

A single label is refused, so that one more is added, which scores less than all.
"""

from candidates import list_candidates
from sklearn.metrics import coverage_error


def find_ranks(scores, tests, known, batch_size):
    """Return the ranks of the test triples, by side and by the way of ties."""
    ranks = {("head", "pessimistic"): [], ("tail", "pessimistic"): []}
    for side, true, others in list_candidates(scores, tests, known):
        ranks[side, "pessimistic"].append(
            coverage_error([[1, 0] + [0] * len(others)], [[true, scores.min() - 1, *others]])
        )
    return ranks
