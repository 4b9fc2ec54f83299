"""The rank of the true triple among its corruptions, and the metrics of many ranks under PyKEEN's keys."""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from kgreference.dialect import Unproved
from kgreference.step import Outcome

NOT_PROVED_PENALTY: Final = 100.0
"""The nats subtracted from the log-probability of a candidate that is not proved."""

HITS: Final = (1, 3, 10)


class Ranks(NamedTuple):
    """The 1-based ranks of a true triple, with ties won, shared and lost."""

    optimistic: float
    realistic: float
    pessimistic: float


def ranking_score(log_probability: float, outcome: Outcome, unproved: Unproved = Unproved.SUBTRACT_100) -> float:
    """Return the log-probability in nats, minus 100 unless the outcome is PROVED or the dialect subtracts nothing."""
    if unproved is Unproved.LOG_PROBABILITY:
        return log_probability
    return log_probability if outcome == Outcome.PROVED else log_probability - NOT_PROVED_PENALTY


def rank(true_score: float, corruption_scores: Sequence[float], tolerance: float = 0.0) -> Ranks:
    """Return the ranks of the true triple among its corruptions.

    Scores closer than ``tolerance`` (nats) count as equal, and so do equal scores with any tolerance. Raises ValueError
    for a score that is not finite, and for a negative tolerance.
    """
    if not all(math.isfinite(value) for value in [true_score, *corruption_scores]):
        raise ValueError("a ranking score must be a finite number")
    if not tolerance >= 0.0:
        raise ValueError(f"a tolerance must be 0 or more, found {tolerance}")
    differences = [value - true_score for value in corruption_scores]
    num_equal = sum(difference == 0 or abs(difference) < tolerance for difference in differences)
    num_above = sum(difference > 0 and not abs(difference) < tolerance for difference in differences)
    optimistic = 1 + num_above
    pessimistic = optimistic + num_equal
    return Ranks(float(optimistic), (optimistic + pessimistic) / 2, float(pessimistic))


def metrics(
    head_ranks: Sequence[Ranks], tail_ranks: Sequence[Ranks], other_ranks: Sequence[Ranks] = ()
) -> dict[str, float]:
    """Return the mean reciprocal rank and hits at 1, 3 and 10, keyed ``{side}.{rank type}.{metric}``.

    The side `both` pools all ranks, including those of neither side (`other_ranks`). A side without ranks has no keys.
    """
    sides = {"head": head_ranks, "tail": tail_ranks, "both": [*head_ranks, *tail_ranks, *other_ranks]}
    values = {}
    for side, ranks in sides.items():
        if not ranks:
            continue
        for rank_type in Ranks._fields:
            of_type = [getattr(each, rank_type) for each in ranks]
            prefix = f"{side}.{rank_type}"
            values[f"{prefix}.mean_reciprocal_rank"] = _mean([1.0 / value for value in of_type])
            for k in HITS:
                values[f"{prefix}.hits_at_{k}"] = _mean([float(value <= k) for value in of_type])
    return values


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
