"""Statistics of timing samples, and the ratio of two runs that noise alone explains."""

import statistics
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.bench.plan import LEAST_REPEATS

LEAST_BAND: Final = 0.05
"""Two processes differ by about this much, more than calls of one process: another layout of memory, another clock."""

_NUM_RESAMPLES: Final = 4000
_SEED: Final = 0
_COVERED: Final = 0.95


class Spread(NamedTuple):
    """Statistics of samples, in their unit; deviation: of the sample, with n - 1; 0 for a single one."""

    least: float
    median: float
    mean: float
    most: float
    deviation: float


def summarize(samples: Sequence[float]) -> Spread:
    """Summarize samples, of which there must be at least one."""
    deviation = statistics.stdev(samples) if len(samples) > 1 else 0.0
    return Spread(min(samples), statistics.median(samples), statistics.fmean(samples), max(samples), deviation)


class Band(NamedTuple):
    """The ratios of medians that noise alone explains; 1 lies inside."""

    low: float
    high: float

    def __contains__(self, ratio: object) -> bool:
        return isinstance(ratio, float) and self.low <= ratio <= self.high


def find_band(before: Sequence[float], after: Sequence[float], least: float = LEAST_BAND) -> Band | None:
    """Return the band of the ratio of the medians, after to before, if both sides differ only by noise.

    Each side's samples, divided by their median, are drawn with replacement; the ratio of the medians of two such draws is
    noise alone, and 95 % of them lie in the band. It reaches at least `least` to both sides. None where a side has too few
    samples to estimate the noise, or one that is not above 0.
    """
    if min(len(before), len(after)) < LEAST_REPEATS or min(*before, *after) <= 0:
        return None
    random = np.random.default_rng(_SEED)
    ratios = _draw_medians(after, random) / _draw_medians(before, random)
    low, high = np.quantile(ratios, [(1 - _COVERED) / 2, (1 + _COVERED) / 2])
    return Band(min(float(low), 1 / (1 + least)), max(float(high), 1 + least))


def _draw_medians(samples: Sequence[float], random: np.random.Generator) -> NDArray[np.float64]:
    """Return the medians of draws, float64 [n], divided by the median of the samples."""
    values = np.asarray(samples, np.float64)
    drawn = random.choice(values, (_NUM_RESAMPLES, len(values)))
    medians: NDArray[np.float64] = np.median(drawn, axis=1) / np.median(values)
    return medians
