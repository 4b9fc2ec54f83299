"""The scores of a `two_tower` network and their log-softmax, computed a second time in numpy."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import kgreference

Array = NDArray[np.float64]

TOLERANCE: Final = 1e-9
"""The most that two computations in float64 differ, in proportion to the lengths of the vectors multiplied."""
NUM_SYMBOLS: Final = 500
"""Rows of each embedding, more than any generated program has symbols."""


def draw_weights(seed: int, salt: int) -> dict[str, NDArray[Any]]:
    """Draw a network of odd sizes: narrow or wide, without blocks, in float32, with scores too large to exponentiate."""
    rng = np.random.default_rng([seed, salt])
    h, d, num_blocks = (int(rng.integers(*each)) for each in ((1, 10), (1, 8), (0, 4)))
    scale = float(rng.choice([0.02, 0.3, 1.0, 1.0, 3.0, 60.0]))
    return make_weights(rng, h, d, num_blocks, NUM_SYMBOLS, scale, rng.choice([np.float32, np.float64]))


def make_weights(
    rng: np.random.Generator,
    h: int,
    d: int,
    num_blocks: int,
    num_symbols: int,
    scale: float = 1.0,
    dtype: Any = np.float32,
) -> dict[str, NDArray[Any]]:
    """Return random weights of width h for embeddings of d numbers."""
    shapes: dict[str, tuple[int, ...]] = {
        **{f"embedding.{name}": (num_symbols, d) for name in ("predicate", "constant", "variable")},
        "input.weight": (h, d),
        "input.bias": (h,),
    }
    for block in range(num_blocks):
        shapes[f"block.{block}.weight"] = (h, h)
        shapes |= {f"block.{block}.{name}": (h,) for name in ("bias", "norm.weight", "norm.bias")}
    return {name: (scale * rng.normal(size=shape)).astype(dtype) for name, shape in shapes.items()}


class Scorer:
    """A two_tower network over all goals of a step at once, as matrices."""

    def __init__(self, weights: dict[str, NDArray[Any]]) -> None:
        self.weights = {name: array.astype(np.float64) for name, array in weights.items()}

    def vectors(self, goals: list[list[list[int]]]) -> Array:
        """Return one row f(goal) for each goal; each is divided by the fourth root of the width."""
        w = self.weights
        tables = [w["embedding.predicate"], w["embedding.constant"], w["embedding.variable"]]
        sums = [np.zeros((len(goals), len(table))) for table in tables]
        for row, goal in enumerate(goals):
            for predicate, first, second in goal:
                sums[0][row, predicate] += 1
                for term, sign in ((first, 1), (second, -1)):
                    sums[1 if term >= 0 else 2][row, term if term >= 0 else -term - 1] += sign
        lengths = np.array([[len(goal)] for goal in goals])
        x: Array = (sum(count @ table for count, table in zip(sums, tables, strict=True)) / lengths) @ w[
            "input.weight"
        ].T
        x = x + w["input.bias"]
        h = x.shape[1]
        block = 0
        while f"block.{block}.weight" in w:
            linear = x @ w[f"block.{block}.weight"].T + w[f"block.{block}.bias"]
            x = x + linear * (linear > 0)
            centred = x - x.sum(axis=1, keepdims=True) / h
            length = np.sqrt((centred * centred).sum(axis=1, keepdims=True) + h * 1e-5)
            x = centred / length * np.sqrt(h) * w[f"block.{block}.norm.weight"] + w[f"block.{block}.norm.bias"]
            block += 1
        return x / h**0.25

    def judge(self, goal: list[list[int]], resolvents: list[list[list[int]]], step: "kgreference.Step") -> str:
        """Return how scores, choice or log-probability of a step differ; "" if they do not."""
        if not resolvents[0]:
            is_right = step.scores == [0.0] and step.choice == 0 and step.log_probability == 0.0
            return "" if is_right else f"scores of a step without a goal: {step.scores}"
        own, *others = self.vectors([goal, *resolvents])
        expected = np.array([own @ other for other in others])
        slack = TOLERANCE * (1 + np.linalg.norm(own) * max(np.linalg.norm(other) for other in others))
        actual = np.array(step.scores)
        if actual.shape != expected.shape or not np.all(np.abs(actual - expected) <= slack):
            return f"scores: expected {expected.tolist()}, found {step.scores}"
        near = np.flatnonzero(expected >= expected.max() - slack).tolist()
        if step.choice not in near or resolvents[step.choice] in [resolvents[i] for i in near if i < step.choice]:
            return f"choice: expected one of {near}, found {step.choice}"
        log_probability = -np.logaddexp.reduce(expected - expected[step.choice])
        if not abs(step.log_probability - log_probability) <= 2 * slack + 1e-12:
            return f"log-probability: expected {log_probability}, found {step.log_probability}"
        return ""
