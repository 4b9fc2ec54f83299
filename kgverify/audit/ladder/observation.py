"""Everything that a call does: its outputs, its changes of arguments, shared memory, errors; and comparison of two calls."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kgverify.audit.audited_function import Function, Inputs
from kgverify.audit.values import copy_values, list_leaves
from kgverify.errors import describe_error


@dataclass(frozen=True)
class Observation:
    """The effects of one call.

    outputs, arguments: copies of the leaves after the call, by path
    aliases:            for every output leaf that shares memory with another leaf, the first one that does
    error:              its type and the first line of its message; empty where nothing was raised
    """

    outputs: dict[str, Any] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    error: str = ""


class Deviation(NamedTuple):
    """A way in which a call differs from the expected one.

    call:  its name, such as `repeated call 2`
    kind:  `output`, `argument` (changed by the call), `aliasing`, `error` or `structure`
    where: the path of the leaf; empty for errors
    """

    call: str
    kind: str
    where: str
    detail: str


class DeviceLost(Exception):
    """A kernel failed, and the device cannot be used again in this process."""


def observe(function: Function, inputs: Inputs, read: Callable[[Any], Any] = lambda output: output) -> Observation:
    """Call a function and record its effects, errors included; of the outputs only what is read.

    DeviceLost where nothing can be recorded any more.
    """
    try:
        output = read(function(*inputs))
        # The call that made a kernel reports its failure.
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
    except Exception as raised:
        error = describe_error(raised)
        try:
            return Observation(arguments=copy_values(_name_leaves("argument", inputs)), error=error)
        except RuntimeError:
            raise DeviceLost(error) from raised
    arguments, outputs = _name_leaves("argument", inputs), _name_leaves("output", output)
    aliases: dict[str, str] = {}
    first_at: dict[int, str] = {}
    for path, leaf in (*arguments.items(), *outputs.items()):
        if not isinstance(leaf, Tensor) or leaf.layout != torch.strided or leaf.numel() == 0:
            continue
        address = leaf.untyped_storage().data_ptr()
        if path in outputs and address in first_at:
            aliases[path] = first_at[address]
        first_at.setdefault(address, path)
    return Observation(copy_values(outputs), copy_values(arguments), aliases)


def compare_observations(expected: Observation, actual: Observation, call: str = "") -> Iterator[Deviation]:
    """Yield the deviations; integers and booleans must be equal, floats as near as `torch.testing.assert_close` asks."""
    if expected.error or actual.error:
        if expected.error.split(":")[0] != actual.error.split(":")[0]:
            before, after = (each or "no error" for each in (expected.error, actual.error))
            yield Deviation(call, "error", "", f"expected {before}, found {after}")
        return
    for kind in ("output", "argument"):
        leaves, found = getattr(expected, f"{kind}s"), getattr(actual, f"{kind}s")
        if list(leaves) != list(found):
            yield Deviation(call, "structure", kind, f"expected {len(leaves)} leaves, found {len(found)}")
            continue
        for path, leaf in leaves.items():
            if detail := describe_difference(leaf, found[path]):
                yield Deviation(call, kind, path, detail)
    for path in sorted(expected.aliases.keys() | actual.aliases.keys()):
        before, after = (each.aliases.get(path, "nothing") for each in (expected, actual))
        if before != after:
            yield Deviation(call, "aliasing", path, f"shares memory with {after}, expected {before}")


def describe_difference(expected: Any, actual: Any) -> str:
    """Describe how two leaves differ; empty if they are equal."""
    if not isinstance(expected, Tensor) or not isinstance(actual, Tensor):
        if isinstance(expected, Tensor) or isinstance(actual, Tensor):
            return f"expected a {type(expected).__name__}, found a {type(actual).__name__}"
        same = expected is actual or expected == actual or (expected != expected and actual != actual)
        return "" if same else f"expected {expected!r}, found {actual!r}"
    for what in ("dtype", "shape"):
        if getattr(expected, what) != getattr(actual, what):
            return f"expected {what} {getattr(expected, what)}, found {getattr(actual, what)}"
    if not expected.is_floating_point() and not expected.is_complex():
        is_other = expected != actual
    else:
        try:
            torch.testing.assert_close(actual, expected, equal_nan=True)
            return ""
        except AssertionError:
            relative, absolute = torch.testing._comparison.get_tolerances(expected.dtype, rtol=None, atol=None)
            is_other = ~torch.isclose(actual, expected, relative, absolute, equal_nan=True)
    if not bool(is_other.any()):
        return ""
    first = is_other.nonzero()[0].tolist()
    at = f" at {first}" if first else ""
    values = expected[tuple(first)].item(), actual[tuple(first)].item()
    counted = f"{int(is_other.sum()):,} of {is_other.numel():,} elements"
    return f"{counted};{at} expected {values[0]!r}, found {values[1]!r}"


def _name_leaves(kind: str, tree: Any) -> dict[str, Any]:
    return {f"{kind}{path}": leaf for path, leaf in list_leaves(tree)}
