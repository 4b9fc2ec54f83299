"""Writes of several values to one place: which one stays is not specified, on a CPU neither."""

import sys
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kgverify.audit.compiled_run import make_call, same_values
from kgverify.audit.notes import Notes
from kgverify.audit.places import Place, restoring
from kgverify.audit.source_lines import calling_line
from kgverify.audit.subject import Function, Subject

AUDIT = "duplicate-scatters"
_MOST_SITES: Final = 64


class Writes(NamedTuple):
    """Of one operation: to which element of its result each value goes, int64 [N], and the values [N]."""

    target: Tensor
    element: Tensor
    value: Tensor
    is_in_place: bool


class Scatters(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs a function with every colliding write settled one way: at chosen lines the first value stays, else the last.

    colliding: how many elements were written more than one value, by line
    """

    def __init__(self, function: Function, *, first_at: Iterable[str] | None = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.colliding: dict[str, int] = {}
        self._function = function
        self._first_at = None if first_at is None else frozenset(first_at)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation; settle what collides in it."""
        writes = _writes(func, args, kwargs or {})
        if writes is None:
            return func(*args, **(kwargs or {}))
        order = torch.argsort(writes.element, stable=True)
        element, value = writes.element[order], writes.value[order]
        is_same = element[1:] == element[:-1]
        differs = is_same & (value[1:] != value[:-1]) & ~((value[1:] != value[1:]) & (value[:-1] != value[:-1]))
        if not bool(differs.any()):
            return func(*args, **(kwargs or {}))
        where = calling_line(sys._getframe(1), self._function)
        self.colliding[where] = max(self.colliding.get(where, 0), len(torch.unique(element[1:][differs])))
        is_first = self._first_at is None or where in self._first_at
        edge = torch.ones(1, dtype=torch.bool, device=element.device)
        stays = torch.cat([edge, ~is_same]) if is_first else torch.cat([~is_same, edge])
        settled = writes.target.clone(memory_format=torch.contiguous_format)
        settled.view(-1)[element[stays]] = value[stays]
        return writes.target.copy_(settled) if writes.is_in_place else settled


def _writes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Writes | None:
    """What an operation writes where, if it writes values to given places without adding them up."""
    if func.namespace != "aten":
        return None
    name, _, overload = str(func).removeprefix("aten.").partition(".")
    is_in_place = name.endswith("_")
    name = name.strip("_")
    if name in ("index_put", "unsafe_index_put", "index_put_impl", "put"):
        accumulates = kwargs.get("accumulate", args[3] if len(args) > 3 else False)
        if accumulates:
            return None
        target, indices, values = args[:3]
        if name == "put":
            indices, places = [indices], torch.arange(target.numel(), device=target.device)
        else:
            places = _places(target)
        if any(i is not None and not isinstance(i, Tensor) for i in indices):
            return None
        element = places[tuple(slice(None) if i is None else i.long() if _is_index(i) else i for i in indices)]
        return Writes(target, *_flat(element, values, target), is_in_place)
    if name == "scatter" and "reduce" not in overload and "reduce" not in kwargs:
        target, dim, index, values = args[:4]
        if not isinstance(values, Tensor) or index.numel() == 0:
            return None
        element = _places(target).gather(dim, index)
        values = values[tuple(slice(size) for size in index.shape)] if values.dim() else values
        return Writes(target, *_flat(element, values, target), is_in_place)
    if name == "index_copy":
        target, dim, index, values = args[:4]
        return Writes(target, *_flat(_places(target).index_select(dim, index), values, target), is_in_place)
    return None


def _is_index(index: Tensor) -> bool:
    return index.dtype not in (torch.bool, torch.uint8)


def _places(target: Tensor) -> Tensor:
    return torch.arange(target.numel(), device=target.device).view(target.shape)


def _flat(element: Tensor, values: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    return element.reshape(-1), values.to(target.device, target.dtype).expand(element.shape).reshape(-1)


def find_scatters(subject: Subject, found: list[Place], notes: Notes) -> None:
    """Settle colliding writes both ways; lines are told where what a caller reads depends on which value stays."""
    harmful: dict[str, int] = {}
    seen: dict[str, int] = {}
    for number in range(subject.calls):
        lasts = Scatters(subject.function)
        last = _run(subject, number, lasts, found)
        if not lasts.colliding:
            continue
        seen |= lasts.colliding
        if same_values(last, _run(subject, number, Scatters(subject.function, first_at=None), found)):
            continue
        lines = list(lasts.colliding)[:_MOST_SITES]
        alone = [
            where
            for where in lines
            if not same_values(last, _run(subject, number, Scatters(subject.function, first_at=(where,)), found))
        ]
        for where in alone or lines:
            harmful[where] = max(harmful.get(where, 0), lasts.colliding[where])
    notes.measures["colliding_scatters"] = len(seen)
    notes.details["colliding_scatters"] = tuple(
        f"{where}: {num} elements{'' if where in harmful else ', which no result that is read depends on'}"
        for where, num in seen.items()
    )
    for where, num in harmful.items():
        notes.find(
            AUDIT,
            mechanism="several values are written to one element, and the order of writes is not specified",
            finding=f"{num} elements are written different values, and the result depends on which one stays",
            where=where,
            remedy="make the indices unique (a slot of its own for what is dropped), or reduce: scatter_reduce, index_add",
        )


def _run(subject: Subject, number: int, mode: Scatters, found: list[Place]) -> Any:
    inputs = subject.inputs(number)

    def settled(*arguments: Any) -> Any:
        with mode:
            return subject.function(*arguments)

    with restoring(found):
        call, error = make_call(settled, inputs, number)
        if error is not None:
            raise error
        held = [place.get() for place in found if isinstance(place.get(), Tensor)]
        output = subject.read(call.output)
        return [
            [value for _, value in call.snapshot] if output is call.output else output,
            inputs,
            [t.clone() for t in held],
        ]
