"""All that a call does: what it gives, what it leaves in its arguments, what shares memory with what, what it raises."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kgverify.audit.report import describe_error
from kgverify.audit.audited_function import Function, Inputs, leaves


@dataclass(frozen=True)
class Observation:
    """One call.

    outputs, arguments: the leaves after it, by path, in memory of their own
    aliases:            of every leaf of the outputs that shares memory with another leaf, the first one that does
    error:              its type and the first line of what it says; empty where nothing was raised
    """

    outputs: dict[str, Any] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    error: str = ""


class Difference(NamedTuple):
    """How an observation differs from the expected one.

    kind:  `output`, `argument` (what was left in one), `aliasing`, `error` or `structure`
    where: the path of the leaf; empty for errors
    """

    kind: str
    where: str
    detail: str


class DeviceLost(Exception):
    """A kernel failed, and the device can do nothing more in this process."""


def _wait() -> None:
    """A kernel's failure is told by the call that made it."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


def observe(function: Function, inputs: Inputs, read: Callable[[Any], Any] = lambda output: output) -> Observation:
    """Call it and note what came of it, of the outputs what is read; what it raises is noted, too.

    DeviceLost where nothing can be noted any more.
    """
    try:
        given = read(function(*inputs))
        _wait()
    except Exception as error:
        told = describe_error(error)
        try:
            return Observation(arguments=_kept("argument", inputs), error=told)
        except RuntimeError:
            raise DeviceLost(told) from error
    outputs = _named("output", given)
    aliases: dict[str, str] = {}
    first_at: dict[int, str] = {}
    for path, leaf in (*_named("argument", inputs).items(), *outputs.items()):
        if not isinstance(leaf, Tensor) or leaf.layout != torch.strided or leaf.numel() == 0:
            continue
        address = leaf.untyped_storage().data_ptr()
        if path in outputs and address in first_at:
            aliases[path] = first_at[address]
        first_at.setdefault(address, path)
    return Observation({path: _keep(leaf) for path, leaf in outputs.items()}, _kept("argument", inputs), aliases)


def find_differences(expected: Observation, actual: Observation) -> list[Difference]:
    """Numbers and truth values have to be equal; floating-point ones as near as `torch.testing.assert_close` has them."""
    if expected.error or actual.error:
        if _type_of(expected.error) == _type_of(actual.error):
            return []
        said = [each or "nothing" for each in (expected.error, actual.error)]
        return [Difference("error", "", f"expected {said[0]}, was raised: {said[1]}")]
    differences = []
    for kind, before, after in (
        ("output", expected.outputs, actual.outputs),
        ("argument", expected.arguments, actual.arguments),
    ):
        if list(before) != list(after):
            detail = f"{len(before)} leaves were expected, {len(after)} came"
            differences.append(Difference("structure", kind, detail))
            continue
        for path, leaf in before.items():
            if detail := describe_difference(leaf, after[path]):
                differences.append(Difference(kind, path, detail))
    for path in sorted(expected.aliases.keys() | actual.aliases.keys()):
        shared = expected.aliases.get(path), actual.aliases.get(path)
        if shared[0] != shared[1]:
            detail = f"shares memory with {shared[1] or 'nothing'}, expected {shared[0] or 'nothing'}"
            differences.append(Difference("aliasing", path, detail))
    return differences


def describe_difference(expected: Any, actual: Any) -> str:
    """In words; empty where there is none."""
    if not isinstance(expected, Tensor) or not isinstance(actual, Tensor):
        if isinstance(expected, Tensor) or isinstance(actual, Tensor):
            return f"a {type(expected).__name__} was expected, a {type(actual).__name__} came"
        same = expected is actual or expected == actual or (expected != expected and actual != actual)
        return "" if same else f"{expected!r} was expected, {actual!r} came"
    for what in ("dtype", "shape"):
        if getattr(expected, what) != getattr(actual, what):
            return f"{what} {getattr(expected, what)} was expected, {getattr(actual, what)} came"
    if not expected.is_floating_point() and not expected.is_complex():
        is_other = expected != actual
    else:
        try:
            torch.testing.assert_close(actual, expected, equal_nan=True)
            return ""
        except AssertionError:
            is_other = ~torch.isclose(actual, expected, *_tolerance(expected.dtype), equal_nan=True)
    if not bool(is_other.any()):
        return ""
    first = is_other.nonzero()[0].tolist()
    at = f" at {first}" if first else ""
    values = expected[tuple(first)].item(), actual[tuple(first)].item()
    return (
        f"{int(is_other.sum()):,} of {is_other.numel():,} elements;{at} {values[0]!r} was expected, {values[1]!r} came"
    )


def _tolerance(dtype: torch.dtype) -> tuple[float, float]:
    relative, absolute = torch.testing._comparison.get_tolerances(dtype, rtol=None, atol=None)
    return relative, absolute


def _type_of(error: str) -> str:
    return error.split(":")[0]


def _named(kind: str, tree: Any) -> dict[str, Any]:
    return {f"{kind}{path}": leaf for path, leaf in leaves(tree)}


def _kept(kind: str, tree: Any) -> dict[str, Any]:
    return {path: _keep(leaf) for path, leaf in _named(kind, tree).items()}


def _keep(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, Tensor) else leaf
