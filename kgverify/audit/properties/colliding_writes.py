"""Writes of several values to one place: which one stays is left open, on a CPU too. Found as a function runs, with the line.

A place that is written twice and never read is harmless, and common: padding goes to a sink. So a function is run with the
first write staying and with the last one; only where something that is read of it depends on that is there a finding.
"""

import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kgverify.audit.report import Finding
from kgverify.audit.values import Difference, Look, bits_of, differences, keep, user_line
from kgverify.audit.properties.captured_values import Place, restoring
from kgverify.audit.properties.compiled_run import make_call
from kgverify.audit.properties.notes import Notes
from kgverify.audit.source_lines import calling_line
from kgverify.audit.audited_function import Subject

AUDIT = "duplicate-scatters"
MOST_ELEMENTS: Final = 1 << 30
"""Larger targets are not looked at."""
_MOST_LINES: Final = 64
_EVERYWHERE: Final = frozenset(("",))


class Repeated(NamedTuple):
    """A line that writes places twice. num: places that are given differing values, at most in one run of the operation"""

    where: str
    operation: str
    num: int


class Dependence(NamedTuple):
    """Of one run of a function.

    repeated: where places were written twice, in the order met
    read:     those of them on which a result depends, and how; None where they matter only together
    """

    repeated: tuple[Repeated, ...]
    read: tuple[tuple[Repeated, Difference | None], ...]
    num_scatters: int
    num_too_large: int


class _Write(NamedTuple):
    """target, and where in it each of the values goes: int64 positions, all one-dimensional but the target."""

    target: Tensor
    position: Tensor
    values: Tensor
    is_in_place: bool


class _Settling(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Settles every colliding write one way: at the lines `first` the first value stays, elsewhere the last."""

    def __init__(self, line: Callable[[], str], first: frozenset[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num: Counter[tuple[str, str]] = Counter()
        self.num_scatters = 0
        self.num_too_large = 0
        self._line, self._first = line, first

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation; settle what collides in it."""
        kwargs = kwargs or {}
        write = _read_write(func, args, kwargs)
        if write is None:
            return func(*args, **kwargs)
        self.num_scatters += 1
        if write.target.numel() > MOST_ELEMENTS:
            self.num_too_large += 1
            return func(*args, **kwargs)
        order = write.position.argsort(stable=True)
        place, values = write.position[order], write.values[order]
        is_same_place = place[1:] == place[:-1]
        bits = bits_of(values)
        num = len(torch.unique(place[1:][is_same_place & (bits[1:] != bits[:-1])]))
        if num == 0:
            return func(*args, **kwargs)
        where = self._line()
        name = func.overloadpacket.__name__
        self.num[where, name] = max(self.num[where, name], num)
        # Of each place the first in order, or the last: then every place is written once, and the order is ours.
        stays = torch.ones_like(place, dtype=torch.bool)
        if where in self._first or self._first is _EVERYWHERE:
            stays[1:] = ~is_same_place
        else:
            stays[:-1] = ~is_same_place
        settled = write.target.clone(memory_format=torch.contiguous_format)
        settled.view(-1)[place[stays]] = values[stays]
        return write.target.copy_(settled) if write.is_in_place else settled


def _read_write(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Write | None:
    """What an operation writes where, if it writes values to given places without adding them up; else None."""
    if func.namespace != "aten":
        return None
    name, _, overload = str(func).removeprefix("aten.").partition(".")
    kind = name.strip("_").removesuffix("_impl").removeprefix("unsafe_")
    if kind in ("index_put", "put"):
        given = dict(zip(("self", "indices", "values", "accumulate"), args, strict=False)) | kwargs
        if given.get("accumulate", False):
            return None
        target = given["self"]
        if kind == "put":
            values = given["source"] if "source" in given else given["values"]
            position = _positions(target).take(given["index"] if "index" in given else given["indices"])
        else:
            values, indices = given["values"], given["indices"]
            position = _positions(target)[tuple(slice(None) if i is None else i for i in indices)]
    elif kind == "index_copy":
        target, dim, index, values = args
        position = _positions(target).index_select(dim, index.view(-1)) if target.dim() else _positions(target)
    elif kind == "scatter" and overload == "src":
        target, dim, index, values = args
        position = _positions(target).gather(dim, index)
        values = values[tuple(slice(size) for size in index.shape)]
    else:
        return None
    if not isinstance(values, Tensor) or position.numel() < 2:
        return None
    values = values.to(target.device, target.dtype).expand(position.shape)
    return _Write(target, position.reshape(-1), values.reshape(-1), name.endswith("_"))


def _positions(target: Tensor) -> Tensor:
    return torch.arange(target.numel(), device=target.device).view(target.shape)


def find_dependence(run: Callable[[], Any], line: Callable[[], str] = user_line) -> Dependence:
    """Run a function, which gives what is read of its results, with colliding writes settled either way.

    Each run must do the same. line: the one that an operation stands in
    """

    def settled(first: frozenset[str]) -> tuple[_Settling, Any]:
        with _Settling(line, first) as settling:
            return settling, keep(run())

    seen, last = settled(frozenset())
    repeated = tuple(Repeated(where, operation, num) for (where, operation), num in seen.num.items())

    def depends(first: frozenset[str]) -> Difference | None:
        return next(differences(last, settled(first)[1]), None)

    read: list[tuple[Repeated, Difference | None]] = []
    if repeated and depends(_EVERYWHERE) is not None:
        alone = [(each, depends(frozenset((each.where,)))) for each in repeated[:_MOST_LINES]]
        read = [pair for pair in alone if pair[1] is not None] or [(each, None) for each in repeated]
    return Dependence(repeated, tuple(read), seen.num_scatters, seen.num_too_large)


def describe(name: str, repeated: Repeated, difference: Difference | None) -> Finding:
    """A line whose order of writes a result depends on. name: of the function, before what is found; may be empty"""
    prefix = f"{name}: " if name else ""
    how = f": if the first does, {difference}" if difference else ""
    return Finding(
        audit=AUDIT,
        mechanism="several values are written to one element, and the order of writes is not specified, in eager and in "
        "compiled code alike",
        finding=f"{prefix}{repeated.operation} writes {repeated.num:,} elements different values, and the result depends on "
        f"which one stays{how}",
        where=repeated.where,
        remedy="make the indices unique (a slot of its own for what is dropped), or reduce: scatter_reduce, index_add",
    )


def audit_scatters(run: Callable[[], Any], name: str) -> Look:
    """Of a function that gives what is read of its results, the same each time.

    Measures: `scatters`, `scatters_repeated` (lines that write a place twice with differing values) and, of these,
    `scatters_read`, on which the result depends.
    """
    seen = find_dependence(run)
    measures = {
        "scatters": float(seen.num_scatters),
        "scatters_repeated": float(len(seen.repeated)),
        "scatters_read": float(len(seen.read)),
        "scatters_too_large": float(seen.num_too_large),
    }
    return Look(findings=tuple(describe(name, *each) for each in seen.read), measures=measures)


def find_scatters(subject: Subject, found: list[Place], notes: Notes) -> None:
    """Every call of a subject; of each line what was worst."""

    def line() -> str:
        return calling_line(sys._getframe(1), subject.function)

    repeated: dict[str, Repeated] = {}
    read: dict[str, tuple[Repeated, Difference | None]] = {}
    for number in range(subject.calls):
        seen = find_dependence(partial(_run, subject, number, found), line)
        for each in seen.repeated:
            repeated[each.where] = max(each, repeated.get(each.where, each), key=lambda one: one.num)
        for each, difference in seen.read:
            read.setdefault(each.where, (each, difference))
    notes.measures["colliding_scatters"] = len(repeated)
    notes.details["colliding_scatters"] = tuple(
        f"{where}: {each.num} elements{'' if where in read else ', which no result that is read depends on'}"
        for where, each in repeated.items()
    )
    notes.findings += [describe("", *each) for each in read.values()]


def _run(subject: Subject, number: int, found: list[Place]) -> Any:
    """What a caller can read after a call: its output, its arguments, and what it closes over."""
    inputs = subject.inputs(number)
    with restoring(found):
        call, error = make_call(subject.function, inputs, number)
        if error is not None:
            raise error
        held = [place.get() for place in found if isinstance(place.get(), Tensor)]
        return keep((subject.read(call.output), inputs, held))
