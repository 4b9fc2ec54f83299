"""Policies as data: a name and optional weights. Each engine implements the arithmetic itself."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from kgverify.engines.score_error import bound_score_errors
from kgverify.errors import UserError
from kgverify.files.reading import read_file
from kgverify.files.writing import write_file
from kgverify.program.limits import Limits
from kgverify.program.program import Program
from kgverify.trace.model.header import PolicyInfo

Weights = Mapping[str, NDArray[np.floating]]

POLICY_NAMES = ("shortest", "two_tower")

_MAX_HEADER_BYTES: Final = 1 << 20
"""Bytes of the names and shapes in a file of weights; the decoder takes many times as much."""


@dataclass(frozen=True, eq=False)
class Policy:
    """A policy: `shortest`, or `two_tower` with its weights (tensor names and shapes: docs/semantics.md)."""

    name: str
    weights: Weights = field(default_factory=dict)

    @cached_property
    def info(self) -> PolicyInfo:
        """The name, the hash of the weights and the error of scores in each precision, for a trace's header."""
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


def write_policy(policy: Policy, path: Path) -> None:
    """Write the weights as safetensors. UserError if the file cannot be written."""
    # `save_file` gives the file to its owner alone.
    write_file(path, save({name: np.ascontiguousarray(t) for name, t in policy.weights.items()}))


def read_policy(path: Path) -> Policy:
    """Read a `two_tower`'s weights from a safetensors file. UserError if the file cannot be read as such."""
    content = read_file(path, purpose="a safetensors file")
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
                fix="name the tensors as docs/semantics.md does",
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
