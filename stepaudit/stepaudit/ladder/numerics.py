"""The precision ladder of a step: its error in each precision, against the same operations in float64.

The lower precisions are emulated, so that they can be compared on every machine: each operation takes and returns numbers of
that precision, and computes in the dtype of the step.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from stepaudit.ladder.climb import Climb, Judge, watch
from stepaudit.ladder.observation import VALUES
from stepaudit.ladder.rounding import MATRIX_PRODUCTS
from stepaudit.operations import OperationMode
from stepaudit.options import EAGER
from stepaudit.report import Cell
from stepaudit.values import is_same, scale_of

_TF32_BITS: Final = 13
"""The bits of a float32 that tf32 does not have."""


def round_to_tf32(tensor: Tensor) -> Tensor:
    """Return float32 values with the 10 bits that tf32 keeps, rounded to the nearest, ties away from zero."""
    bits = tensor.contiguous().view(torch.int32) + (1 << (_TF32_BITS - 1))
    rounded = (bits >> _TF32_BITS << _TF32_BITS).view(torch.float32)
    return torch.where(tensor.isfinite(), rounded, tensor)


def _round_to(dtype: torch.dtype, tensor: Tensor) -> Tensor:
    return tensor.to(dtype).to(tensor.dtype)


PRECISIONS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "tf32": round_to_tf32,
    "bf16": partial(_round_to, torch.bfloat16),
    "fp16": partial(_round_to, torch.float16),
}
"""The precisions, each with the function that rounds a float32 to it. In tf32 only the factors of products are rounded."""


class _NarrowRun(OperationMode):  # type: ignore[no-untyped-call]
    """A run whose operations round their float32 arguments and, unless only products are rounded, their results."""

    def __init__(self, round_values: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._round = round_values
        self._rounds_all = round_values is not round_to_tf32

    def meet(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation on rounded arguments, and round its results."""
        name = func.overloadpacket.__name__
        multiplies = name in MATRIX_PRODUCTS or "convolution" in name or "attention" in name
        if func.is_view or not (self._rounds_all or multiplies):
            return func(*args, **kwargs)
        given = func._schema.arguments
        written = {each.name for each in given if each.alias_info is not None and each.alias_info.is_write}
        args = [each if of.name in written else self._round_tree(each) for of, each in zip(given, args, strict=False)]
        kwargs = {name: each if name in written else self._round_tree(each) for name, each in kwargs.items()}
        out = func(*args, **kwargs)
        for each in pytree.tree_leaves(out) if self._rounds_all else ():
            if _is_single(each):
                each.copy_(self._round(each))
        return out

    def _round_tree(self, tree: Any) -> Any:
        return pytree.tree_map(lambda leaf: self._round(leaf) if _is_single(leaf) else leaf, tree)


def _is_single(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.dtype == torch.float32 and leaf.layout == torch.strided


def list_errors(judge: Judge, compiled: Climb) -> Iterator[dict[str, Cell]]:
    """List the leaves of the first call with their errors against float64 in each precision, and on a rung.

    An error is the largest one of an element, relative to the largest value of the leaf, and in units in the last place of
    the element itself. Leaves that are exact everywhere are left out.
    """
    exact = judge.read_float64("call 1")
    if exact is None:
        return
    subject = replace(judge.subject, calls=1)
    calls = {"as it is": judge.expected["call 1"]}
    for name, round_values in PRECISIONS.items():
        calls[name] = watch(subject, EAGER, repetitions=0, mode=_NarrowRun(round_values))["call 1"]
    calls[f"on rung {compiled.rung.name}"] = judge.watch(compiled.rung, 1)["call 1"]
    for kind in VALUES:
        for path, true in exact.leaves(kind).items():
            found = {name: _describe_error(true, each.leaves(kind).get(path)) for name, each in calls.items()}
            is_written = kind not in ("argument", "captured") or found["as it is"] != _EXACT
            if is_written and set(found.values()) - {_EXACT}:
                yield {"leaf": f"gradient of {path}" if kind == "gradient" else path, **found}


_EXACT: Final = "exact"


def _describe_error(true: Any, found: Any) -> str:
    if not isinstance(true, Tensor) or not isinstance(found, Tensor) or true.shape != found.shape:
        return _EXACT if is_same(true, found) else "another value"
    if not found.is_floating_point():
        num = int((found != true).sum())
        return f"{num:,} of {found.numel():,} others" if num else _EXACT
    gap = (found.detach().double() - true.detach().double()).abs()
    if not bool((gap > 0).any()):
        return "not finite" if bool(gap.isnan().any()) else _EXACT
    kinds = torch.finfo(found.dtype)
    units = gap / (kinds.eps * true.detach().double().abs().clamp_min(kinds.tiny))
    return f"{float(gap.amax()) / (scale_of(true) or 1.0):.2g} ({float(units.amax()):.2g} ulps)"
