"""Policies as data: a name and optional weights. Each engine implements the arithmetic itself, or calls the user's function."""

import hashlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load

from kgverify.errors import UserError, describe_error
from kgverify.files.reading import read_file
from kgverify.program.limits import Limits
from kgverify.program.program import Program
from kgverify.trace.model.header import PolicyInfo
from kgverify.trace.model.score_tolerance import LEAST, UNIT_ROUNDOFF, round_up

NUM_PAIRS: Final = 64
"""The number of pairs of a goal and a resolvent in the sample."""

MARGIN: Final = 16.0
"""The ratio of the bound to the largest change seen in the sample."""

_SUMS: Final = UNIT_ROUNDOFF["float32"]
"""The rounding of sums and norms in every precision except float64: products of shorter numbers are added in float32."""

Array = NDArray[np.float64]


def bound_score_errors(weights: Mapping[str, NDArray[np.floating]]) -> dict[str, float]:
    """Bound the errors of scores of a `two_tower` with these weights, in nats, for each precision.

    Bounds are rounded up to two digits, so that they do not depend on the last bits of a machine's arithmetic.
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
    """Return the mean embeddings of random goals: [2, n, d].

    A goal has one atom or more, as far as the policy has variables.
    """
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
    """Score each pair. factor, rounding: the relative errors put into the factors of products, and into everything else."""

    def disturb(array: Array, size: Array | float) -> Array:
        return array + size * random.uniform(-1.0, 1.0, array.shape)

    def multiply(x: Array, weight: Array, bias: Array) -> Array:
        product = disturb(x, factor * np.abs(x)) @ disturb(weight, factor * np.abs(weight)).T + bias
        # A sum of n terms with random signs has n roundings, which are random too.
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
    """Bound the error of well-conditioned weights by the size of scores, which the scale and shift of the last norm limit."""
    width, last = len(network["input.bias"]), sum("norm.bias" in name for name in network) - 1
    if last < 0:
        return 1e-4 if rounding == _SUMS else 0.0
    scale, shift = (np.abs(network[f"block.{last}.norm.{part}"]).max(initial=0.0) for part in ("weight", "bias"))
    # The largest score, times the roundings that a sum of this width collects at random in each layer.
    return float(width**0.5 * (scale + shift) ** 2 * (last + 3) * width**0.5 * 2 * rounding)


Weights = Mapping[str, NDArray[np.floating]]

Scorer: TypeAlias = Callable[[Any, Any], Any]
"""A policy as a function (goal, resolvents) -> scores: int32 [A, 3] and int32 [S, R, 3] to [S] finite numbers.

An atom is a predicate and two arguments, in the ids of the program's symbols; variable number v is -1 - v. A goal has A atoms.
Of S resolvents, the longest has R; the rows after the atoms of a shorter one are `NO_ATOM`, and one without atoms is a proof. The
highest score wins. A torch module is called with tensors on the CPU, any other function with numpy arrays.
"""

NO_ATOM: Final = (-1, -1, -1)
"""The rows after a resolvent's atoms. No predicate is -1."""

POLICY_NAMES = ("shortest", "two_tower")

_MAX_HEADER_BYTES: Final = 1 << 20
"""The largest size of the names and shapes in a file of weights, in bytes; decoding them takes many times as much memory."""


@dataclass(frozen=True, eq=False)
class Policy:
    """A policy: `shortest`, `two_tower` with its weights (tensor names and shapes: docs/semantics.md), or a user's function."""

    name: str
    weights: Weights = field(default_factory=dict)
    scorer: Scorer | None = None

    @classmethod
    def of_function(cls, scorer: Scorer) -> "Policy":
        """Return the policy that a function or a torch module is."""
        return cls(f"{getattr(scorer, '__name__', type(scorer).__name__)}()", scorer=scorer)

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields. UserError for a function, which stays in its process."""
        if self.scorer is not None:
            fix = "leave jobs and scheduler out"
            raise UserError(f"{self.name} is a function of this process", where="policy", fix=fix)
        return vars(self)

    def score(self, goal: Sequence[Sequence[int]], resolvents: Sequence[Sequence[Sequence[int]]]) -> list[float]:
        """Return the user's scores of resolvents, each the atoms of one. UserError for anything but a number for each."""
        assert self.scorer is not None
        padded = np.full((len(resolvents), max(map(len, resolvents)), 3), NO_ATOM, np.int32)
        for row, atoms in zip(padded, resolvents, strict=True):
            row[: len(atoms)] = np.array(atoms, np.int32).reshape(-1, 3)
        given: list[Any] = [np.array(goal, np.int32).reshape(-1, 3), padded]
        is_module = hasattr(self.scorer, "state_dict")
        try:
            # The module's owner has imported torch.
            found = self.scorer(*map(sys.modules["torch"].from_numpy, given) if is_module else given)
            scores = np.asarray(found.detach().cpu() if hasattr(found, "detach") else found, np.float64)
        except Exception as error:
            fix = "repair it; docs/evaluating.md describes what it is called with"
            raise UserError(f"raised {describe_error(error)}", where=f"policy {self.name}", fix=fix) from error
        if scores.shape != (len(resolvents),) or not np.isfinite(scores).all():
            shape = "numbers that are not finite" if scores.shape == (len(resolvents),) else f"shape {scores.shape}"
            fix = "return one number for each row of resolvents; the highest wins"
            expected = f"expected {len(resolvents)} finite scores, found {shape}"
            raise UserError(expected, where=f"policy {self.name}", fix=fix)
        return list(map(float, scores))

    def _hash_function(self) -> str:
        """Return a hash of a function's source, or that of its class, and of a module's weights."""
        digest = hashlib.sha256(self.name.encode())
        with suppress(OSError, TypeError):
            source = self.scorer if inspect.isroutine(self.scorer) else type(self.scorer)
            digest.update(inspect.getsource(source).encode())
        for name, tensor in getattr(self.scorer, "state_dict", dict[str, Any])().items():
            digest.update(name.encode() + np.asarray(tensor.detach().cpu().double()).tobytes())
        return digest.hexdigest()

    @cached_property
    def info(self) -> PolicyInfo:
        """The name, the hash of the weights and the error of scores in each precision, for a trace's header."""
        if self.scorer is not None:
            return PolicyInfo(self.name, self._hash_function())
        if not self.weights:
            return PolicyInfo(self.name)
        digest = hashlib.sha256()
        for name in sorted(self.weights):
            tensor = np.ascontiguousarray(self.weights[name])
            digest.update(f"{name}\0{tensor.dtype.str}\0{tensor.shape}\0".encode() + tensor.tobytes())
        return PolicyInfo(self.name, digest.hexdigest(), bound_score_errors(self.weights))

    @property
    def num_blocks(self) -> int:
        """The number of residual blocks of a `two_tower`."""
        return sum(1 for name in self.weights if name.startswith("block.") and name.count(".") == 2) // 2


SHORTEST = Policy("shortest")


def make_two_tower(
    program: Program, limits: Limits, *, seed: int, embedding: int = 64, hidden: int = 64, blocks: int = 2
) -> Policy:
    """Make a random `two_tower` of the given sizes, in float32, determined by the seed."""
    random = np.random.default_rng(seed)

    def normal(scale: float, *shape: int) -> NDArray[np.float32]:
        return (random.standard_normal(shape) * scale).astype(np.float32)

    weights = {
        "embedding.predicate": normal(1.0, len(program.symbols.predicates), embedding),
        "embedding.constant": normal(1.0, len(program.symbols.constants), embedding),
        "embedding.variable": normal(1.0, 2 * limits.max_atoms, embedding),
        "input.weight": normal(embedding**-0.5, hidden, embedding),
        "input.bias": normal(0.1, hidden),
    }
    for i in range(blocks):
        weights[f"block.{i}.weight"] = normal((2 / hidden) ** 0.5, hidden, hidden)
        weights[f"block.{i}.bias"] = normal(0.1, hidden)
        weights[f"block.{i}.norm.weight"] = 1 + normal(0.1, hidden)
        weights[f"block.{i}.norm.bias"] = normal(0.1, hidden)
    return Policy("two_tower", weights)


def read_policy(path: Path) -> Policy:
    """Read a `two_tower`'s weights from a safetensors file. UserError if that is impossible."""
    content = read_file(path, purpose="a safetensors file")
    if content.startswith((b"PK", b"\x80")):
        load_line = f"torch.load({path.name!r}, weights_only=True)"
        raise UserError(
            "was written by torch.save as a pickle, which can run code when it is read",
            where=str(path),
            fix=f"convert it: safetensors.torch.save_file({load_line}, {path.with_suffix('.safetensors').name!r})",
        )
    header_bytes = int.from_bytes(content[:8], "little")
    if header_bytes > _MAX_HEADER_BYTES:
        raise UserError(
            f"says that its header takes {header_bytes:,} bytes, expected at most {_MAX_HEADER_BYTES:,}",
            where=str(path),
            fix="write it with safetensors",
        )
    try:
        weights = load(content)
    except (SafetensorError, KeyError, ValueError, TypeError, OverflowError, MemoryError) as error:
        raise UserError(
            f"not readable as safetensors: {error}", where=str(path), fix="write it with safetensors"
        ) from None
    return Policy("two_tower", weights)


def check_policy(policy: Policy, program: Program, limits: Limits, where: str = "policy") -> None:
    """Raise UserError unless the weights fit the program, the limits and one another."""
    if policy.scorer is not None:
        if limits.dialect.stopping != "never":
            raise UserError(
                "scores resolvents, and this dialect also offers to stop", where=where, fix='choose stopping = "never"'
            )
        return
    if policy.name not in POLICY_NAMES:
        raise UserError(f"unknown policy {policy.name!r}", where=where, fix=f"choose one of {', '.join(POLICY_NAMES)}")
    if policy.name == "shortest":
        return
    weights = policy.weights

    def shape(name: str) -> tuple[int, ...]:
        if name not in weights:
            raise UserError(
                f"expected a tensor {name!r}, found {', '.join(sorted(weights)) or 'none'}",
                where=where,
                fix="name the tensors as docs/semantics.md does; or, in Python, give your network itself as policy",
            )
        return tuple(weights[name].shape)

    if len(shape("embedding.predicate")) != 2 or len(shape("input.weight")) != 2:
        raise UserError(
            "expected matrices embedding.predicate and input.weight",
            where=where,
            fix="see docs/semantics.md for the shapes",
        )
    d, h = shape("embedding.predicate")[1], shape("input.weight")[0]
    expected: dict[str, tuple[int, ...]] = {
        "embedding.predicate": (len(program.symbols.predicates), d),
        "embedding.constant": (len(program.symbols.constants), d),
        "input.weight": (h, d),
        "input.bias": (h,),
    }
    for i in range(policy.num_blocks):
        expected[f"block.{i}.weight"] = (h, h)
        for part in ("bias", "norm.weight", "norm.bias"):
            expected[f"block.{i}.{part}"] = (h,)
    for name, wanted in expected.items():
        if shape(name) != wanted:
            raise UserError(
                f"tensor {name!r} is {list(shape(name))}, expected {list(wanted)}",
                where=where,
                fix="use weights made for this graph: one row for each predicate and constant",
            )
    variables = shape("embedding.variable")
    if len(variables) != 2 or variables[0] < 2 * limits.max_atoms or variables[1] != d:
        raise UserError(
            f"tensor 'embedding.variable' is {list(variables)}, expected at least {2 * limits.max_atoms} rows of {d}",
            where=where,
            fix="lower max_atoms, or use weights with two variable rows for each atom",
        )
    for name, tensor in weights.items():
        if not np.isfinite(tensor).all():
            raise UserError(f"tensor {name!r} holds NaN or infinity", where=where, fix="check the training run")
