"""The policy `two_tower` in float64 with NumPy: a goal at a time, so that a score depends on nothing else."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kgverify.step.clauses import Atoms
from kgverify.step.plain_step import Resolvent, Scores

Array = NDArray[np.float64]

_NORM_EPSILON = 1e-5


def score_two_tower(weights: Mapping[str, NDArray[Any]], num_blocks: int) -> Scores:
    """Return the scores of a `two_tower` with these weights (docs/semantics.md); 0 for a resolvent without atoms."""
    exact: dict[str, Array] = {name: np.asarray(array, np.float64) for name, array in weights.items()}
    of_predicate, of_constant, of_variable = (exact[f"embedding.{of}"] for of in ("predicate", "constant", "variable"))

    def embed(term: int) -> Any:
        return of_constant[term] if term >= 0 else of_variable[-1 - term]

    @lru_cache(maxsize=1 << 16)
    def tower(goal: Atoms) -> Array:
        x: Array = np.mean([of_predicate[p] + embed(a) - embed(b) for p, a, b in goal], axis=0)
        x = exact["input.weight"] @ x + exact["input.bias"]
        for i in range(num_blocks):
            block = f"block.{i}"
            x = x + np.maximum(exact[f"{block}.weight"] @ x + exact[f"{block}.bias"], 0.0)
            x = (x - x.mean()) / np.sqrt(x.var() + _NORM_EPSILON)
            x = x * exact[f"{block}.norm.weight"] + exact[f"{block}.norm.bias"]
        return x

    def score(goal: Atoms, resolvents: Sequence[Resolvent]) -> list[float]:
        scale = float(np.sqrt(len(exact["input.bias"])))
        return [float(tower(goal) @ tower(each.atoms)) / scale if each.atoms else 0.0 for each in resolvents]

    return score
