"""The rank of the true triple among its corruptions."""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from kgreference.step import Outcome

NOT_PROVED_PENALTY: Final = 100.0
"""The nats subtracted from the log-probability of a candidate that is not proved."""


class Ranks(NamedTuple):
    """The 1-based ranks of a true triple: with ties won, shared and lost."""

    optimistic: float
    realistic: float
    pessimistic: float


def ranking_score(log_probability: float, outcome: Outcome) -> float:
    """Return the log-probability in nats, less 100 unless the outcome is PROVED."""
    return log_probability if outcome == Outcome.PROVED else log_probability - NOT_PROVED_PENALTY


def rank(true_score: float, corruption_scores: Sequence[float], tolerance: float = 0.0) -> Ranks:
    """Return the ranks of the true triple among its corruptions.

    Scores closer than ``tolerance`` (nats) count as equal; so do equal scores, whatever the tolerance.
    Raises ValueError for a score that is not finite, and for a negative tolerance.
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
