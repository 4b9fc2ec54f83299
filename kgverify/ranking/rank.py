"""The stage `rank`: the rank of the true triple among its corruptions, with ties won, shared and lost."""

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kgverify.program.outcomes import NOT_PROVED_PENALTY, Outcome
from kgverify.ranking.groups import divide, drop_repeated, find_groups, sort_rows
from kgverify.trace.model.columns import Candidates, CandidateSet, Rankings

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
    is_above, is_tied = compare_gaps(scores - groups.repeat(scores[groups.starts[:-1]]), tolerance)
    is_tied[groups.true] = False
    above, tied = (groups.count_where(mask)[groups.has_true] for mask in (is_above, is_tied))
    return Rankings(
        groups.query[groups.has_true],
        groups.side[groups.has_true],
        groups.counts[groups.has_true].astype(np.uint32),
        1.0 + above.astype(np.float64),
        1.0 + (above + tied).astype(np.float64),
    )


def compare_gaps(gap: NDArray[np.float64], tolerance: float) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which scores are above and which tie, from their gaps in nats to the true triple's score."""
    if not tolerance:
        return gap > 0, gap == 0
    return gap >= tolerance, (gap < tolerance) & (gap > -tolerance)
