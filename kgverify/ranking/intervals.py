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

NAMES: Final = ("mean_reciprocal_rank", *(f"hits_at_{k}" for k in HITS_AT))


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
    query, row = np.unique(rankings.query, return_inverse=True)
    if len(query) < 2:
        return {}
    # Of each query: the number of its rankings on a side, then the sums of their values.
    sums = np.zeros((len(query), 3, 1 + len(NAMES)))
    for i, mask in enumerate(_masks(rankings)):
        np.add.at(sums[:, i], row[mask], np.column_stack((np.ones(int(mask.sum())), _values(rankings)[mask])))
    kinds, count = np.unique(sums.reshape(len(query), -1), axis=0, return_counts=True)
    random = np.random.default_rng(seed)
    num_at_once = max(1, MOST_CELLS // len(kinds))
    drawn = [
        random.multinomial(len(query), count / len(query), min(num_at_once, RESAMPLES - begin)) @ kinds
        for begin in range(0, RESAMPLES, num_at_once)
    ]
    totals = np.concatenate(drawn).reshape(RESAMPLES, 3, -1)
    with np.errstate(invalid="ignore"):
        means = totals[:, :, 1:] / totals[:, :, :1]
    tails = (1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2
    return {
        f"{side}.realistic.{name}": (float(low), float(high))
        for i, side in enumerate(("head", "tail", "both"))
        for j, name in enumerate(NAMES)
        if sums[:, i, 0].any()
        for low, high in [np.nanquantile(means[:, i, j], tails)]
    }


def compare_pairs(first: Rankings, second: Rankings, seed: int = 0) -> dict[str, PairedDifference]:
    """Compare two evaluations that rank the same queries and sides in the same order, metric by metric.

    The test flips the signs of the differences, `FLIPS` times; the interval is that of `find_interval`.
    """
    query, row = np.unique(first.query, return_inverse=True)
    found = {}
    for side, mask in zip(("head", "tail", "both"), _masks(first), strict=True):
        if not mask.any():
            continue
        num = np.bincount(row[mask], minlength=len(query))
        values = [
            np.stack([np.bincount(row[mask], column, len(query)) for column in _values(each)[mask].T], 1)[num > 0]
            for each in (first, second)
        ]
        means = [each / num[num > 0, None] for each in values]
        for j, name in enumerate(NAMES):
            found[f"{side}.realistic.{name}"] = _compare(means[0][:, j], means[1][:, j], seed)
    return found


def _masks(rankings: Rankings) -> tuple[NDArray[np.bool_], ...]:
    side = rankings.side
    return side == Side.HEAD, side == Side.TAIL, np.ones(len(side), np.bool_)


def _values(rankings: Rankings) -> NDArray[np.float64]:
    """Return what each ranking adds to each of the metrics: float64 [n, 4]."""
    ranks = (rankings.optimistic + rankings.pessimistic) / 2
    return np.column_stack((1 / ranks, *(ranks <= k for k in HITS_AT)))


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
