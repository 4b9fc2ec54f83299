"""The policy `two_tower`: one neural network, shared by goal and resolvent, in float64."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kgreference.resolvent import Resolvent
from kgreference.terms import Goal

Vector = NDArray[np.float64]

NORM_EPSILON = 1e-5


class TwoTower:
    """The score ``f(goal) . f(resolvent) / sqrt(h)``, where f maps atoms to a vector of width h.

    ``weights`` has the names and shapes of docs/semantics.md, with any real dtype. Goals are computed one
    by one, so a score never depends on what else is scored. At most ``cache_size`` goals (1 or more) are
    cached.

    Raises ValueError for an array that is missing, not finite or of a wrong shape. `scores` raises
    IndexError for a symbol or a variable without a row.
    """

    def __init__(self, weights: Mapping[str, NDArray[Any]], cache_size: int = 100_000) -> None:
        self._cache_size = cache_size
        self._cache: dict[Goal, Vector] = {}
        self.num_blocks = 0
        while f"block.{self.num_blocks}.weight" in weights:
            self.num_blocks += 1
        self._weights = {name: np.asarray(array, dtype=np.float64) for name, array in weights.items()}
        self._check()
        self.width = len(self._weights["input.bias"])
        parts = "weight", "bias", "norm.weight", "norm.bias"
        self._blocks = [[self._weights[f"block.{block}.{part}"] for part in parts] for block in range(self.num_blocks)]

    def scores(self, goal: Goal, resolvents: Sequence[Resolvent]) -> list[float]:
        """Return one score for each resolvent; one without atoms, such as stopping, scores 0.

        The goal, which has atoms, and the resolvents are canonical.
        """
        scale = math.sqrt(self.width)
        tower = self.tower(goal)
        return [
            float(tower @ self.tower(resolvent.atoms)) / scale if resolvent.atoms else 0.0 for resolvent in resolvents
        ]

    def tower(self, atoms: Goal) -> Vector:
        """Return f(atoms), float64 [h]."""
        if atoms not in self._cache:
            if len(self._cache) >= self._cache_size:
                self._cache.clear()
            self._cache[atoms] = self._compute_tower(atoms)
        return self._cache[atoms]

    def _compute_tower(self, atoms: Goal) -> Vector:
        if not atoms:
            raise ValueError("a goal without atoms has no embedding, so no step starts from it")
        weights = self._weights
        embedding = np.add.reduce([self._embed_atom(*atom) for atom in atoms], axis=0) / len(atoms)
        x = weights["input.weight"] @ embedding + weights["input.bias"]
        for weight, bias, scale, shift in self._blocks:
            x = x + np.maximum(weight @ x + bias, 0.0)
            # The functions of numpy for mean and variance do the same, and take several times as long for one row.
            centred = x - np.add.reduce(x) / len(x)
            variance = np.add.reduce(centred * centred) / len(x)
            x = centred / math.sqrt(variance + NORM_EPSILON) * scale + shift
        tower: Vector = x
        return tower

    def _embed_atom(self, predicate: int, first: int, second: int) -> Vector:
        embedding: Vector = self._weights["embedding.predicate"][predicate]
        return embedding + self._embed_argument(first) - self._embed_argument(second)

    def _embed_argument(self, term: int) -> Vector:
        row: Vector
        if term < 0:
            row = self._weights["embedding.variable"][-1 - term]
        else:
            row = self._weights["embedding.constant"][term]
        return row

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
