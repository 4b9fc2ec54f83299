"""Values compared bit by bit, and the user's line that an operation stands in."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from kgverify.audit.report import Finding, Unmeasured
from kgverify.audit.source_lines import calling_line
from kgverify.audit.audited_function import Function, leaves
from kgverify.errors import UserError

MODES: Final = ("eager", "default", "reduce-overhead", "max-autotune")
_INTEGERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Look(NamedTuple):
    """What one of the audits saw."""

    findings: tuple[Finding, ...] = ()
    unmeasured: tuple[Unmeasured, ...] = ()
    measures: dict[str, float] = {}  # noqa: RUF012

    def join(self, other: "Look") -> "Look":
        """What both saw."""
        return Look(
            self.findings + other.findings,
            self.unmeasured + other.unmeasured,
            {**self.measures, **other.measures},
        )


def name_leaf(leaf: str) -> str:
    """A leaf of (result, arguments as the call left them, what it closes over) in words; of anything else as it is."""
    if leaf.startswith("[0]"):
        return f"the result{leaf.removeprefix('[0]')}"
    if leaf.startswith("[1]"):
        return f"the arguments{leaf.removeprefix('[1]')}"
    return f"what it closes over{leaf.removeprefix('[2]')}" if leaf.startswith("[2]") else leaf


class Difference(NamedTuple):
    """Between two values of a leaf. num: elements that differ; largest: absolute, NaN where there is a NaN on one side alone"""

    leaf: str
    num: int
    size: int
    largest: float

    def __str__(self) -> str:
        if self.size == 0:
            return f"{name_leaf(self.leaf) or 'the result'} has another shape or type"
        by = f", by up to {self.largest:.3g}" if np.isfinite(self.largest) else ""
        return f"{self.num:,} of {self.size:,} elements of {name_leaf(self.leaf) or 'the result'} differ{by}"


def keep(tree: Any) -> Any:
    """The same values, which nothing overwrites."""

    def copied(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return leaf.detach().clone()
        return leaf.copy() if isinstance(leaf, np.ndarray) else leaf

    return pytree.tree_map(copied, tree)


def bits_of(tensor: Tensor) -> Tensor:
    """The same bits as integers."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.is_floating_point():
        return tensor.contiguous().view(_INTEGERS[tensor.element_size()])
    return tensor


def differences(first: Any, second: Any) -> Iterator[Difference]:
    """The leaves whose bits differ, in order."""
    one, other = leaves(first), leaves(second)
    if [path for path, _ in one] != [path for path, _ in other]:
        yield Difference("the structure", 0, 0, np.nan)
        return
    for (path, a), (_, b) in zip(one, other, strict=True):
        if isinstance(a, Tensor | np.ndarray) and isinstance(b, Tensor | np.ndarray):
            found = _difference(path, torch.as_tensor(a), torch.as_tensor(b))
            if found is not None:
                yield found
        elif isinstance(a, float) and isinstance(b, float):
            if np.float64(a).tobytes() != np.float64(b).tobytes():
                yield Difference(path, 1, 1, abs(a - b))
        elif a is not b and a != b:
            yield Difference(path, 1, 1, np.nan)


def _difference(path: str, a: Tensor, b: Tensor) -> Difference | None:
    if a.shape != b.shape or a.dtype != b.dtype:
        return Difference(path, 0, 0, np.nan)
    differs = bits_of(a) != bits_of(b)
    num = int(differs.sum())
    if num == 0:
        return None
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    gap = (a.double() - b.double()).abs()[differs]
    return Difference(path, num, a.numel(), float(gap.amax()))


def user_line() -> str:
    """`file:line` of the innermost frame on the stack that is the user's."""
    return _short(calling_line(sys._getframe(1)) or "unknown")


def _short(name: str) -> str:
    """Below the folder that one is in, the rest of the path."""
    try:
        return str(Path(name).relative_to(Path.cwd()))
    except ValueError:
        return name


def check_modes(modes: Sequence[str]) -> None:
    """UserError for what is neither `eager` nor a mode of `torch.compile`."""
    for mode in modes:
        if mode not in MODES:
            raise UserError(f"unknown mode {mode!r}", where="--mode", fix=f"choose one of {', '.join(MODES)}")


def in_mode(function: Function, mode: str) -> Function:
    """The function as it is for `eager`, else through `torch.compile` in a mode. What cannot be compiled raises, whatever
    TORCHDYNAMO_SUPPRESS_ERRORS says: what ran eagerly instead would be taken for compiled.
    """
    if mode == "eager":
        return function
    compiled = torch.compile(function, dynamic=False, mode=mode)

    def call(*arguments: Any) -> Any:
        with torch._dynamo.config.patch(suppress_errors=False):
            return compiled(*arguments)

    return call


def devices_of(tree: Any) -> set[str]:
    """The kinds of devices of the tensors."""
    return {leaf.device.type for _, leaf in leaves(tree) if isinstance(leaf, Tensor)}
