"""Intervals of metrics, and the paired comparison of two evaluations of the same queries.

Head and tail side of a query share its triple, so the unit that is resampled, or compared, is the query.
"""

import math
from functools import cache
from statistics import NormalDist
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.program.outcomes import Side
from kgverify.ranking.rank import HITS_AT
from kgverify.trace.model.columns import Rankings

CONFIDENCE: Final = 0.95
RESAMPLES: Final = 1000
FLIPS: Final = 9999
MOST_CELLS: Final = 1 << 22
"""The maximum number of random counts that are drawn at once."""
_FEW: Final = 200
"""The degrees of freedom up to which Student's distribution is summed term by term."""

_SIDES: Final = ("head", "tail", "both")
_KEYS: Final = tuple(
    (f"{side}.realistic.{name}", i, j)
    for i, side in enumerate(_SIDES)
    for j, name in enumerate(("mean_reciprocal_rank", *(f"hits_at_{k}" for k in HITS_AT)), 1)
)
"""The key of each metric, and the places of its side and of itself in the sums of queries."""


class PairedDifference(msgspec.Struct, frozen=True):
    """The difference of a metric between two evaluations of the same queries, `second - first`.

    low, high:     its 95 % interval
    p_value:       the probability of a difference at least as large if the two evaluations could be exchanged in each query
    num_differing: the number of queries with another value
    """

    first: float
    second: float
    difference: float
    low: float
    high: float
    p_value: float
    num_queries: int
    num_differing: int


def bootstrap_metrics(rankings: Rankings, seed: int) -> dict[str, tuple[float, float]]:
    """Return the 95 % percentile interval of each metric of the realistic ranks; nothing for fewer than two queries.

    Queries are drawn with replacement, `RESAMPLES` times. Equal queries are drawn together, by their number.
    """
    sums = _sum_queries(rankings)
    num = len(sums)
    if num < 2:
        return {}
    kinds, count = np.unique(sums.reshape(num, -1), axis=0, return_counts=True)
    random = np.random.default_rng(seed)
    num_at_once = max(1, MOST_CELLS // len(kinds))
    drawn = [
        random.multinomial(num, count / num, min(num_at_once, RESAMPLES - begin)) @ kinds
        for begin in range(0, RESAMPLES, num_at_once)
    ]
    totals = np.concatenate(drawn).reshape(RESAMPLES, *sums.shape[1:])
    tails = (1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2
    found = {}
    for key, i, j in _KEYS:
        # A sample may lack the side, if few queries have it.
        rows = totals[totals[:, i, 0] > 0, i]
        if len(rows):
            low, high = np.quantile(rows[:, j] / rows[:, 0], tails)
            found[key] = float(low), float(high)
    return found


def compare_pairs(first: Rankings, second: Rankings, seed: int = 0) -> dict[str, PairedDifference]:
    """Compare two evaluations that rank the same queries and sides in the same order, metric by metric.

    The test flips the signs of the differences, `FLIPS` times; the interval is that of `find_interval`.
    """
    sums = _sum_queries(first), _sum_queries(second)
    found = {}
    for key, i, j in _KEYS:
        one, two = (each[each[:, i, 0] > 0, i] for each in sums)
        if len(one):
            found[key] = _compare(one[:, j] / one[:, 0], two[:, j] / two[:, 0], seed)
    return found


def _sum_queries(rankings: Rankings) -> NDArray[np.float64]:
    """Return the number of rankings of each query and side, and the sums of what they add to each metric: float64 [n, 3, 5]."""
    query, row = np.unique(rankings.query, return_inverse=True)
    side, ranks = rankings.side, (rankings.optimistic + rankings.pessimistic) / 2
    values = np.column_stack((np.ones(len(ranks)), 1 / ranks, *(ranks <= k for k in HITS_AT)))
    sums = np.zeros((len(query), len(_SIDES), values.shape[1]))
    for i, mask in enumerate((side == Side.HEAD, side == Side.TAIL, side >= 0)):
        np.add.at(sums[:, i], row[mask], values[mask])
    return sums


def _compare(first: NDArray[np.float64], second: NDArray[np.float64], seed: int) -> PairedDifference:
    gap = second - first
    return PairedDifference(
        first=float(first.mean()),
        second=float(second.mean()),
        difference=float(gap.mean()),
        low=find_interval(gap)[0],
        high=find_interval(gap)[1],
        p_value=flip_signs(gap, seed),
        num_queries=len(gap),
        num_differing=int(np.count_nonzero(gap)),
    )


def find_interval(gap: NDArray[np.float64]) -> tuple[float, float]:
    """Return the 95 % interval of the mean of differences, float64 [n], each from -1 to 1.

    It is that of Student's paired t, with one degree of freedom less than there are differences that are not 0: equal queries
    tell nothing about the spread of the others. A single difference has no spread, so the interval is that of the values.
    """
    mean, freedom = float(gap.mean()), int(np.count_nonzero(gap)) - 1
    if freedom < 1:
        return (mean, mean) if freedom < 0 else (-1.0, 1.0)
    half = find_t_quantile((1 + CONFIDENCE) / 2, freedom) * float(gap.std(ddof=1)) / math.sqrt(len(gap))
    return max(-1.0, mean - half), min(1.0, mean + half)


def flip_signs(gap: NDArray[np.float64], seed: int) -> float:
    """Return the p-value of the two-sided sign-flip test that differences, float64 [n], are symmetric about 0."""
    sizes, count = np.unique(np.abs(gap[gap != 0]), return_counts=True)
    if not len(sizes):
        return 1.0
    observed, random = abs(float(gap.sum())), np.random.default_rng(seed)
    num_at_once = max(1, MOST_CELLS // len(sizes))
    num_as_large = 0
    for begin in range(0, FLIPS, num_at_once):
        shape = min(num_at_once, FLIPS - begin), len(sizes)
        totals: Any = np.abs((2 * random.binomial(count, 0.5, shape) - count) @ sizes)
        # Sums in another order may differ in their last bits.
        num_as_large += int((totals >= observed * (1 - 1e-9)).sum())
    return (1 + num_as_large) / (1 + FLIPS)


@cache
def find_t_quantile(share: float, freedom: int) -> float:
    """Return the quantile of Student's distribution, for a share above 1/2 and a whole number of degrees of freedom."""
    z = NormalDist().inv_cdf(share)
    if freedom > _FEW:
        # Abramowitz and Stegun 26.7.5
        return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        is_below = _t_share(middle, freedom) < 2 * share - 1
        low, high = (middle, high) if is_below else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _t_share(angle: float, freedom: int) -> float:
    """Return the probability of |t| <= sqrt(freedom) * tan(angle): Abramowitz and Stegun 26.7.3 and 26.7.4."""
    cosine, is_odd = math.cos(angle), freedom % 2
    term = total = cosine if is_odd else 1.0
    for k in range(2 + is_odd, freedom - 1, 2):
        term *= cosine**2 * (k - 1) / k
        total += term
    if not is_odd:
        return math.sin(angle) * total
    return 2 / math.pi * (angle + (math.sin(angle) * total if freedom > 1 else 0.0))
