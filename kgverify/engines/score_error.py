"""The judge's bound on the rounding error of a policy's scores, in every precision, from the weights alone.

It shares no code with the engines that it judges. Random rounding errors, of the size that a precision has, are put into
every operation of the network in float64 (Monte Carlo arithmetic; Parker 1997), and the largest change of a score over a
sample of goals is enlarged by a margin.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kgverify.trace.model.score_error import LEAST, UNIT_ROUNDOFF, round_up

NUM_PAIRS: Final = 64
"""The pairs of a goal and a resolvent in the sample."""

MARGIN: Final = 16.0
"""The ratio of the bound to the largest change seen in the sample."""

_SUMS: Final = UNIT_ROUNDOFF["float32"]
"""The rounding of sums and norms in all precisions but float64: products of shorter numbers are added up in float32."""

Array = NDArray[np.float64]


def bound_score_errors(weights: Mapping[str, NDArray[np.floating]]) -> dict[str, float]:
    """Return the bound of each precision, in nats, of a `two_tower` with these weights.

    Two digits are kept, rounded up, so that the last bits of a machine's arithmetic change nothing.
    """
    random = np.random.default_rng(0)
    sums = _draw_sums(weights, random)
    network = {name: np.asarray(array, np.float64) for name, array in weights.items() if "embedding" not in name}
    exact = _score(network, sums, 0.0, 0.0, random)
    bounds = {}
    for precision, unit in UNIT_ROUNDOFF.items():
        rounding = min(unit, _SUMS)
        change = float(np.abs(_score(network, sums, unit, rounding, random) - exact).max())
        bounds[precision] = round_up(max(LEAST, MARGIN * change, 2 * _bound_by_size(network, rounding)))
    return bounds


def _draw_sums(weights: Mapping[str, NDArray[np.floating]], random: np.random.Generator) -> Array:
    """Return the mean embeddings of random goals, of one atom to as many as the policy has variables for: [2, n, d]."""
    predicates, constants, variables = (weights[f"embedding.{of}"] for of in ("predicate", "constant", "variable"))
    most = max(1, min(4, len(variables) // 2))
    shape = 2, NUM_PAIRS, most

    def rows(table: NDArray[np.floating]) -> Array:
        return np.asarray(table[random.integers(0, len(table), shape)], np.float64)

    def argument() -> Array:
        is_variable = random.random(shape) < (0.5 if len(constants) else 1.1)
        return np.where(
            is_variable[..., None], rows(variables[: 2 * most]), rows(constants if len(constants) else variables)
        )

    atoms = rows(predicates) + argument() - argument()
    num_atoms = random.integers(1, most + 1, shape[:2])
    atoms[np.arange(most) >= num_atoms[..., None]] = 0.0
    return np.asarray(atoms.sum(2) / num_atoms[..., None], np.float64)


def _score(
    network: Mapping[str, Array], sums: Array, factor: float, rounding: float, random: np.random.Generator
) -> Array:
    """Score each pair. factor, rounding: the relative errors put into the factors of products, and into all else."""

    def disturb(array: Array, size: Array | float) -> Array:
        return array + size * random.uniform(-1.0, 1.0, array.shape)

    def multiply(x: Array, weight: Array, bias: Array) -> Array:
        product = disturb(x, factor * np.abs(x)) @ disturb(weight, factor * np.abs(weight)).T + bias
        # Of a sum of n terms with random signs, n roundings that are random themselves.
        size = np.sqrt(x.shape[-1] * (x**2 @ (weight**2).T) + bias**2)
        return disturb(product, rounding * size)

    x = multiply(disturb(sums, 4 * rounding * np.abs(sums)), network["input.weight"], network["input.bias"])
    block = 0
    while f"block.{block}.weight" in network:
        weight, bias, scale, shift = (
            network[f"block.{block}.{part}"] for part in ("weight", "bias", "norm.weight", "norm.bias")
        )
        x = x + np.maximum(multiply(x, weight, bias), 0.0)
        x = disturb(x, rounding * np.abs(x))
        mean = x.mean(-1, keepdims=True)
        centred = disturb(x - mean, rounding * (np.abs(x) + np.abs(mean)))
        deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        x = disturb(
            centred / deviation * scale + shift, 4 * rounding * (np.abs(centred / deviation * scale) + np.abs(shift))
        )
        block += 1
    goals, resolvents = x
    size = np.sqrt((goals**2 * resolvents**2).sum(-1))
    return np.asarray(disturb((goals * resolvents).sum(-1), rounding * size) / x.shape[-1] ** 0.5)


def _bound_by_size(network: Mapping[str, Array], rounding: float) -> float:
    """Bound the error of well-conditioned weights by the size of scores, which the last norm's scale and shift limit."""
    width, last = len(network["input.bias"]), sum("norm.bias" in name for name in network) - 1
    if last < 0:
        return 1e-4 if rounding == _SUMS else 0.0
    scale, shift = (np.abs(network[f"block.{last}.norm.{part}"]).max(initial=0.0) for part in ("weight", "bias"))
    # The largest score, and in each of the layers as many roundings as a sum of this width collects at random.
    return float(width**0.5 * (scale + shift) ** 2 * (last + 3) * width**0.5 * 2 * rounding)
