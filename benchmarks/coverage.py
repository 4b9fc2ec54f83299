"""Simulate the coverage of the intervals between two evaluations."""

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks import make_parser, print_header, print_row
from kgverify.ranking.intervals import find_interval

Array = NDArray[np.float64]
MOST_RANKED: Final = 5000
"""The number of candidates of a simulated query."""
SIZES: Final = (100, 200, 1000)


class Pairs(NamedTuple):
    """A distribution of two ranks of a query, as exponentials of normal numbers.

    location, scale: of the logarithm of the first rank
    correlation:     between both logarithms; both sides of a query share another third
    equal:           the share of queries for which both evaluations give the same ranks
    gain:            by which the logarithm of the second rank is lower
    """

    location: float
    scale: float
    correlation: float
    equal: float
    gain: float


SETTINGS: Final = {
    "hard queries": Pairs(2.0, 2.0, 0.8, 0.0, 0.3),
    "easy queries": Pairs(-0.5, 2.0, 0.7, 0.0, 0.2),
    "heavy tails": Pairs(4.0, 2.5, 0.6, 0.2, 1.0),
    "no difference": Pairs(1.0, 2.0, 0.5, 0.3, 0.0),
    "60 % equal": Pairs(1.0, 2.0, 0.9, 0.6, 0.3),
    "85 % equal": Pairs(1.0, 2.0, 0.8, 0.85, 0.5),
    "93 % equal": Pairs(1.0, 2.0, 0.8, 0.93, 0.5),
}


def draw_gaps(pairs: Pairs, shape: tuple[int, int], random: np.random.Generator) -> Array:
    """Draw the differences between two evaluations in the mean reciprocal rank of a query's two sides."""
    query, is_equal = random.standard_normal(shape), random.random(shape) < pairs.equal
    gap: Array = np.zeros(shape)
    for shift in (-0.5, 0.5):
        shared = 0.6 * query + 0.8 * random.standard_normal(shape) + shift
        logs = [
            np.sqrt(pairs.correlation) * shared + np.sqrt(1 - pairs.correlation) * random.standard_normal(shape)
            for _ in range(2)
        ]
        first, second = (
            np.floor(np.exp(pairs.location + pairs.scale * log - gain)).clip(1, MOST_RANKED)
            for log, gain in zip(logs, (0.0, pairs.gain), strict=True)
        )
        gap += np.where(is_equal, 0.0, 1 / second - 1 / first) / 2
    return gap


def count_covered(pairs: Pairs, num_queries: int, num: int, true: float, random: np.random.Generator) -> int:
    """Count the intervals, one for each of `num` simulated pairs of evaluations, that contain the true difference."""
    return sum(
        low <= true <= high
        for gaps in _draw_some(pairs, num_queries, num, random)
        for low, high in map(find_interval, gaps)
    )


def _draw_some(pairs: Pairs, num_queries: int, num: int, random: np.random.Generator) -> Iterator[Array]:
    for begin in range(0, num, 500):
        yield draw_gaps(pairs, (min(500, num - begin), num_queries), random)


def run_coverage(arguments: list[str]) -> None:
    """Count how often the 95 % interval of a paired difference of MRR contains the true difference."""
    parser = make_parser(run_coverage)
    parser.add_argument(
        "--pairs", type=int, default=10_000, help="simulated pairs of evaluations, for each number of queries"
    )
    num = parser.parse_args(arguments).pairs
    print_header("ranks", "true difference of MRR", *(f"{size:,} queries" for size in SIZES))
    for name, pairs in SETTINGS.items():
        random = np.random.default_rng(0)
        true = float(np.mean([gaps.mean() for gaps in _draw_some(pairs, 10_000, 2000, random)]))
        covered = [count_covered(pairs, size, num, true, random) for size in SIZES]
        print_row(name, f"{true:+.4f}", *(f"{100 * each / num:.2f} %" for each in covered))
