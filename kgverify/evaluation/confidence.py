"""The chance that a sample without replacement has seen a defect."""

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

SHARE: Final = 0.01
"""The share of defective members whose chance of being seen is reported."""

CONFIDENCE: Final = 0.99
"""The chance for which the smallest share is reported."""

_LEAST_LOG: Final = math.log(1e-6)

_MOST_UNITS: Final = 1 << 20
"""The steps in which defective members are added; several at once in a larger population."""


class Confidence(NamedTuple):
    """The strength of a sample.

    chance: the chance that a defect in 1 % of the population would have been seen, 0 to 1
    share:  the smallest share of the population such that a defect in it would have been seen with a chance of 99 %
    """

    chance: float
    share: float


def judge_sample(strata: Iterable[tuple[int, int]]) -> Confidence:
    """Judge a sample that was drawn uniformly in each stratum: (members, members drawn).

    The defect is assumed to be spread over the strata in the way that is hardest to see. Each further defective member of a
    stratum multiplies the chance to miss all by a falling factor, so the largest factors of all strata come first.
    """
    strata = [(members, drawn) for members, drawn in strata if members]
    population = sum(members for members, _ in strata)
    if not population:
        return Confidence(1.0, 0.0)
    unit = 1 + population // _MOST_UNITS
    unseen = sum(-(-members // unit) for members, drawn in strata if not drawn)
    logs = [_log_factors(members, drawn, unit) for members, drawn in strata if drawn]
    missed = np.cumsum(np.sort(np.concatenate([np.zeros(0), *logs]))[::-1])
    num = math.ceil(SHARE * population / unit) - unseen
    chance = 0.0 if num <= 0 or not len(missed) else -math.expm1(missed[min(num, len(missed)) - 1])
    enough = int(np.searchsorted(-missed, -math.log1p(-CONFIDENCE) - 1e-12)) + 1
    return Confidence(chance, min(1.0, (unseen + enough) * unit / population) if len(missed) else 1.0)


def _log_factors(members: int, drawn: int, unit: int) -> NDArray[np.float64]:
    """Return the logarithms of the factors until their product is negligible: ((N - n - i) / (N - i)), i = 0, 1, 2 ..."""
    num = -(-(members - drawn) // unit)
    most = math.ceil(-_LEAST_LOG * members / drawn / unit) + 1
    earlier = np.arange(min(num, most), dtype=np.float64) * unit
    logs = unit * np.log1p(-drawn / (members - earlier))
    return logs if num > most else np.append(logs, -np.inf)
