"""The stage `rank`: the rank of the true triple among its corruptions, with ties won, shared and lost."""

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kgverify.errors import InternalError, count_of
from kgverify.program.outcomes import NOT_PROVED_PENALTY, Outcome, Side
from kgverify.ranking.groups import divide, drop_repeated, find_groups, sort_rows
from kgverify.trace.model.columns import Candidates, CandidateSet, Rankings, count_where

Rank = Callable[[Candidates, NDArray[np.int32], float], Rankings]
"""(candidates, triples of the split int32 [n, 3], tolerance in nats) -> rankings."""

RANK_TOLERANCE: Final = 1e-4
"""The difference in nats below which two ranking scores of a verified run are a tie, so that rounding cannot change ranks."""


def ranking_scores(candidates: Candidates) -> NDArray[np.float64]:
    """Return the log-probability in nats, less the penalty unless the outcome is PROVED: float64 [N]."""
    scores: NDArray[np.float64] = NOT_PROVED_PENALTY * (candidates.outcome != Outcome.PROVED)
    return np.subtract(candidates.log_probability, scores, out=scores)


def rank_candidates(candidates: Candidates, triples: NDArray[np.int32], tolerance: float = RANK_TOLERANCE) -> Rankings:
    """Rank the true triple of each query and side that has one; rows in the order of (query, side).

    triples: int32 [n, 3], the split that `candidates.query` points into. A candidate listed twice counts once.
    """
    return rank_scores(candidates, ranking_scores(candidates), triples, tolerance)


def rank_scores(
    candidates: Candidates, scores: NDArray[np.float64], triples: NDArray[np.int32], tolerance: float
) -> Rankings:
    """Rank by given scores, float64 [N]; otherwise like `rank_candidates`."""
    groups = find_groups(candidates, triples)
    if groups is None:
        drawn = CandidateSet(*candidates[:3])
        rows = drop_repeated(drawn)
        rows = rows[sort_rows(drawn.take(rows), triples)]
        scores, groups = scores[rows], divide(drawn.take(rows), triples)
    above, tied = count_gaps(scores - groups.repeat(scores[groups.starts[:-1]]), groups.starts, tolerance)
    optimistic = 1.0 + above.astype(np.float64)
    columns: Any = groups.query, groups.side, groups.counts.astype(np.uint32), optimistic, optimistic + tied
    return Rankings(*(column[groups.has_true] for column in columns))


def count_gaps(
    gap: NDArray[np.float64], starts: NDArray[np.int64], tolerance: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count the scores of each group that are above its first one, and those that tie with it: int64 [G].

    gap: float64 [N], nats, of each score to the first one of its group; starts: int64 [G + 1]
    """
    is_above, is_tied = compare_gaps(gap, tolerance)
    is_above[starts[:-1]] = is_tied[starts[:-1]] = False
    return count_where(is_above, starts), count_where(is_tied, starts)


def compare_gaps(gap: NDArray[np.float64], tolerance: float) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which scores are above and which tie, from their gaps in nats to the true triple's score."""
    if not tolerance:
        return gap > 0, gap == 0
    return gap >= tolerance, (gap < tolerance) & (gap > -tolerance)


HITS_AT: Final = (1, 3, 10)
MRR: Final = "both.realistic.mean_reciprocal_rank"
"""The key of the headline metric."""


def compute_metrics(rankings: Rankings) -> dict[str, float]:
    """Compute MRR and Hits@1, 3, 10 for head, tail and both sides, for each rank type.

    A side without rankings has no keys. InternalError for a mean reciprocal rank outside (0, 1].
    """
    ranks = {
        "optimistic": rankings.optimistic,
        "realistic": (rankings.optimistic + rankings.pessimistic) / 2,
        "pessimistic": rankings.pessimistic,
    }
    sides = {
        "head": rankings.side == Side.HEAD,
        "tail": rankings.side == Side.TAIL,
        "both": np.ones(len(rankings.side), np.bool_),
    }
    metrics = {}
    for side, mask in sides.items():
        for kind, values in ranks.items() if mask.any() else ():
            reciprocal = _mean(1 / values[mask])
            if not 0 < reciprocal <= 1:
                raise InternalError(f"the mean reciprocal rank is {reciprocal}, outside (0, 1]")
            metrics[f"{side}.{kind}.mean_reciprocal_rank"] = reciprocal
            for k in HITS_AT:
                metrics[f"{side}.{kind}.hits_at_{k}"] = _mean(values[mask] <= k)
    return metrics


def describe_hits(num_ranked: NDArray[Any]) -> list[str]:
    """Return a note if rankings have k candidates or fewer, so that hits at k says nothing about them.

    num_ranked: the candidates of each ranking, int [n]
    """
    total = count_of(len(num_ranked), "ranking")
    return [
        f"{num:,} of {total} {'has' if num == 1 else 'have'} {count_of(k, 'candidate')} or fewer:"
        f" each is a hit at {k}, whatever its scores"
        for k in HITS_AT
        if (num := int((num_ranked <= k).sum()))
    ]


def _mean(values: NDArray[Any]) -> float:
    """Return the mean, rounded once, so that it does not depend on the order of the values."""
    return math.fsum(values.tolist()) / len(values)
