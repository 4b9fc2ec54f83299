"""Stage `rank`: where the true triple stands among its corruptions, ties told apart."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from kgverify.logic.outcomes import Outcome
from kgverify.trace.columns import Candidates, Rankings

NOT_PROVED_PENALTY: Final = 100.0
"""What a candidate that is not PROVED loses, in nats."""

RANK_TOLERANCE: Final = 1e-4
"""Two ranking scores closer than this, in nats, are a tie in a verified run, so that no rank hangs on rounding."""


def ranking_scores(candidates: Candidates) -> NDArray[np.float64]:
    """float64 [N], nats: the log-probability, less the penalty where the outcome is not PROVED."""
    is_proved = candidates.outcome == Outcome.PROVED
    return candidates.log_probability - np.where(is_proved, 0.0, NOT_PROVED_PENALTY)


def rank_candidates(candidates: Candidates, triples: NDArray[np.int32], tolerance: float = RANK_TOLERANCE) -> Rankings:
    """Rank the true triple of each query and side that has one; rows in the order of (query, side).

    triples: int32 [n, 3], the split that `candidates.query` points into. A candidate listed twice counts once.
    """
    return rank_scores(candidates, ranking_scores(candidates), triples, tolerance)


def rank_scores(
    candidates: Candidates, scores: NDArray[np.float64], triples: NDArray[np.int32], tolerance: float
) -> Rankings:
    """The same, from scores float64 [N] already made."""
    group = candidates.query.astype(np.int64) * 4 + candidates.side
    is_true = (candidates.atom == triples[candidates.query]).all(1)
    if not _are_distinct(group, candidates.atom, is_true):
        keys = np.column_stack((group, candidates.atom))
        first = np.unique(keys, axis=0, return_index=True)[1]
        group, is_true, scores = group[first], is_true[first], scores[first]

    true_groups = group[is_true]
    place = np.searchsorted(true_groups, group).clip(max=max(0, len(true_groups) - 1))
    is_ranked = true_groups[place] == group if len(true_groups) else np.zeros(len(group), np.bool_)
    gap = scores - scores[is_true][place] if len(true_groups) else scores
    is_above = is_ranked & ~is_true & (gap > 0) & (gap >= tolerance)
    is_tied = is_ranked & ~is_true & ((gap == 0) | (np.abs(gap) < tolerance))

    def count(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
        return np.bincount(place[mask], minlength=len(true_groups))

    above = count(is_above).astype(np.float64)
    return Rankings(
        (true_groups // 4).astype(np.int32),
        (true_groups % 4).astype(np.int8),
        count(is_ranked).astype(np.uint32),
        1.0 + above,
        1.0 + above + count(is_tied),
    )


def _are_distinct(group: NDArray[np.int64], atom: NDArray[np.int32], is_true: NDArray[np.bool_]) -> bool:
    """Whether groups ascend and the corruptions in each do, as they are drawn: none is listed twice. Seen without sorting."""
    true_groups = group[is_true]
    if (group[1:] < group[:-1]).any() or (true_groups[1:] == true_groups[:-1]).any():
        return False
    group, atom = group[~is_true], atom[~is_true]
    ascends = group[1:] > group[:-1]
    is_equal = ~ascends
    for column in atom.T:
        ascends |= is_equal & (column[1:] > column[:-1])
        is_equal &= column[1:] == column[:-1]
    return bool(ascends.all())
