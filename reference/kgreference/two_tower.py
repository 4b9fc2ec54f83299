"""The policy `two_tower`: one neural network, shared by goal and resolvent, in float64."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kgreference.resolvent import Kind, Resolvent
from kgreference.terms import Goal

Array = NDArray[np.float64]

NORM_EPSILON = 1e-5

LEAST_ROWS: Final = 8
"""The number of rows of the smallest matrix product: the goals computed together, followed by zeros."""

MOST_ROWS: Final = 32

_MOST_PRODUCTS: Final = 1 << 18
"""The number of multiplications that OpenBLAS does without starting threads, whose waiting takes longer than the work."""


class TwoTower:
    """The policy with the score ``f(goal) . f(resolvent) / sqrt(h)``, where f maps atoms to a vector of width h.

    ``weights`` has the names and shapes of docs/semantics.md, with any real dtype. Goals are computed together if that
    changes no bit, so a score never depends on other scores. At most ``cache_size`` goals (at least 1) are cached.

    Raises ValueError for an array that is missing, not finite or of a wrong shape. `scores` raises
    IndexError for a symbol or a variable without a row.
    """

    def __init__(self, weights: Mapping[str, NDArray[Any]], cache_size: int = 100_000) -> None:
        self._cache_size = cache_size
        self._cache: dict[Goal, Array] = {}
        self.num_blocks = 0
        while f"block.{self.num_blocks}.weight" in weights:
            self.num_blocks += 1
        self._weights = {name: np.asarray(array, dtype=np.float64) for name, array in weights.items()}
        self._check()
        self.width = len(self._weights["input.bias"])
        parts = "weight", "bias", "norm.weight", "norm.bias"
        self._blocks = [[self._weights[f"block.{block}.{part}"] for part in parts] for block in range(self.num_blocks)]

    def scores(self, goal: Goal, resolvents: Sequence[Resolvent]) -> list[float]:
        """Return one score for each resolvent.

        A resolvent without atoms, such as stopping, scores 0. The goal, which has atoms, and the resolvents are
        canonical.
        """
        scale = math.sqrt(self.width)
        towers = self._find_towers([goal, *(resolvent.atoms for resolvent in resolvents if resolvent.atoms)])
        tower = towers[goal]
        return [float(tower @ towers[resolvent.atoms]) / scale if resolvent.atoms else 0.0 for resolvent in resolvents]

    def prepare(self, steps: Iterable[tuple[Goal, Sequence[Resolvent]]]) -> None:
        """Cache the towers that the scores of several steps need, as far as they fit in the cache."""
        self._find_towers(
            atoms
            for goal, resolvents in steps
            if resolvents[0].kind is Kind.GOAL
            for atoms in (goal, *[resolvent.atoms for resolvent in resolvents])
        )

    def tower(self, atoms: Goal) -> Array:
        """Return f(atoms), float64 [h]."""
        return self._find_towers([atoms])[atoms]

    def _find_towers(self, goals: Iterable[Goal]) -> dict[Goal, Array]:
        """Return f of each goal, and cache it."""
        distinct = dict.fromkeys(goals)
        cached = {atoms: self._cache[atoms] for atoms in distinct if atoms in self._cache}
        others = [atoms for atoms in distinct if atoms not in cached]
        computed = dict(zip(others, self._compute_towers(others), strict=True))
        if len(self._cache) + len(computed) > self._cache_size:
            self._cache.clear()
        self._cache.update(islice(computed.items(), self._cache_size))
        return cached | computed

    def _compute_towers(self, goals: Sequence[Goal]) -> Array:
        """Return f of each goal, float64 [n, h]."""
        towers = np.zeros((len(goals), self.width))
        begin = 0
        while begin < len(goals):
            here = goals[begin : begin + self._count_together(len(goals) - begin)]
            embedded = np.zeros((_round_up(len(here)), self._weights["input.weight"].shape[1]))
            embedded[: len(here)] = self._embed(here)
            towers[begin : begin + len(here)] = self._apply_network(embedded)[: len(here)]
            begin += len(here)
        return towers

    def _count_together(self, num: int) -> int:
        """Return how many of `num` goals to compute together."""
        shapes = {self._weights["input.weight"].shape, (self.width, self.width)}
        for together in (min(num, MOST_ROWS), min(num, LEAST_ROWS)):
            if all(multiplies_rows_alike(_round_up(together), *shape) for shape in shapes):
                return together
        return 1

    def _apply_network(self, embedded: Array) -> Array:
        """Apply f to rows of embeddings, float64 [n, d]: float64 [n, h]."""
        x = multiply(embedded, self._weights["input.weight"]) + self._weights["input.bias"]
        for weight, bias, scale, shift in self._blocks:
            x = x + np.maximum(multiply(x, weight) + bias, 0.0)
            # The functions of numpy for mean and variance do the same, but take several times as long for a few rows.
            centred = x - _mean(x)
            variance = _mean(centred * centred)
            x = centred / np.sqrt(variance + NORM_EPSILON) * scale + shift
        return x

    def _embed(self, goals: Sequence[Goal]) -> Array:
        """Return the mean embedding of each goal's atoms, float64 [n, d]."""
        sizes = np.array([len(atoms) for atoms in goals])
        if not sizes.all():
            raise ValueError("a goal without atoms has no embedding, so no step starts from it")
        predicates, firsts, seconds = np.array([atom for atoms in goals for atom in atoms]).T
        embeddings = self._weights["embedding.predicate"][predicates]
        embeddings = embeddings + self._embed_arguments(firsts) - self._embed_arguments(seconds)
        sums = np.add.reduceat(embeddings, np.cumsum(sizes) - sizes, axis=0)
        means: Array = sums / sizes[:, None]
        return means

    def _embed_arguments(self, terms: NDArray[np.int64]) -> Array:
        is_variable = terms < 0
        rows = np.zeros((len(terms), self._weights["input.weight"].shape[1]))
        rows[is_variable] = self._weights["embedding.variable"][-1 - terms[is_variable]]
        rows[~is_variable] = self._weights["embedding.constant"][terms[~is_variable]]
        return rows

    def _check(self) -> None:
        required = [
            "embedding.predicate",
            "embedding.constant",
            "embedding.variable",
            "input.weight",
            "input.bias",
        ]
        for name in required:
            if name not in self._weights:
                raise ValueError(f"the weights lack {name}")
        if self._weights["input.weight"].ndim != 2:
            raise ValueError("input.weight must have two axes, [h, d]")
        h, d = self._weights["input.weight"].shape
        shapes = {"input.weight": (h, d), "input.bias": (h,)}
        for symbol in ("predicate", "constant", "variable"):
            rows = self._weights[f"embedding.{symbol}"]
            shapes[f"embedding.{symbol}"] = (len(rows), d)
        for block in range(self.num_blocks):
            shapes[f"block.{block}.weight"] = (h, h)
            for vector in ("bias", "norm.weight", "norm.bias"):
                shapes[f"block.{block}.{vector}"] = (h,)
        if set(shapes) != set(self._weights):
            different = sorted(set(shapes) ^ set(self._weights))
            raise ValueError(f"missing or unused weights: {', '.join(different)}")
        for name, shape in shapes.items():
            if self._weights[name].shape != shape:
                raise ValueError(f"{name} has shape {self._weights[name].shape}, expected {shape}")
            if not np.all(np.isfinite(self._weights[name])):
                raise ValueError(f"{name} holds a number that is not finite")


def _round_up(num: int) -> int:
    return -(-num // LEAST_ROWS) * LEAST_ROWS


def _mean(rows: Array) -> Array:
    """Return the mean of each row, float64 [n, 1]."""
    means: Array = np.add.reduce(rows, axis=1, keepdims=True) / rows.shape[1]
    return means


def multiply(rows: Array, matrix: Array) -> Array:
    """Return the product of each row with a matrix [m, k], float64 [n, m], computed a few columns at a time."""
    num = max(1, _MOST_PRODUCTS // (MOST_ROWS * matrix.shape[1]))
    return np.concatenate([rows @ matrix[begin : begin + num].T for begin in range(0, len(matrix), num)], axis=1)


@cache
def multiplies_rows_alike(num: int, height: int, width: int) -> bool:
    """Return whether numpy multiplies each of `num` rows by a matrix [height, width] in the same way as the first of eight.

    A product sums in an order that depends on the shapes and on the place of a row, but not on values, so random values
    show it.
    """
    random = np.random.default_rng(0)
    row, matrix = random.normal(size=width), random.normal(size=(height, width))
    first = np.zeros((LEAST_ROWS, width))
    first[0] = row
    return bool((multiply(np.tile(row, (num, 1)), matrix) == multiply(first, matrix)[0]).all())
