"""The stage `rank`: the rank of the true triple among its corruptions, with ties won, shared and lost."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kgverify.program.outcomes import NOT_PROVED_PENALTY, Outcome
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
