"""Writes of several values to one element, in an order that torch leaves open, even on a CPU.

They are found at run time, with the line. An element that is written twice and never read is harmless and common:
padding goes to a sink. So a function runs once with the first write kept and once with the last. Only a result that
depends on this is a finding.
"""

import sys
from collections import Counter
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from stepaudit.audited_function import Function
from stepaudit.operations import OperationMode
from stepaudit.properties.captured_values import restoring
from stepaudit.properties.compiled_run import CompiledRun, make_call
from stepaudit.source_lines import find_calling_line
from stepaudit.values import copy_values, find_differences, view_bits

MOST_ELEMENTS: Final = 1 << 30
"""The size of the largest target that is examined."""
_MOST_LINES: Final = 64
_EVERYWHERE: Final = frozenset(("",))


class Repeated(NamedTuple):
    """A line that writes elements twice. num: the most elements that one run of the operation gave differing values."""

    where: str
    operation: str
    num: int


class _WriteOrder(OperationMode):  # type: ignore[no-untyped-call]
    """A fixed order of colliding writes: at the lines `first` the first value is kept, elsewhere the last."""

    def __init__(self, function: Function, first: frozenset[str]) -> None:
        super().__init__()
        self.num: Counter[tuple[str, str]] = Counter()
        self._function, self._first = function, first

    @property
    def repeated(self) -> list[Repeated]:
        """The lines that write elements twice, in the order found."""
        return [Repeated(where, operation, num) for (where, operation), num in self.num.items()]

    def meet(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation with its colliding writes in the fixed order."""
        write = _read_write(func, args, kwargs)
        if write is None:
            return func(*args, **kwargs)
        target, position, values, is_in_place = write
        if target.numel() > MOST_ELEMENTS:
            return func(*args, **kwargs)
        order = position.argsort(stable=True)
        position, values = position[order], values[order]
        is_repeated = position[1:] == position[:-1]
        bits = view_bits(values)
        num = len(torch.unique(position[1:][is_repeated & (bits[1:] != bits[:-1])]))
        if num == 0:
            return func(*args, **kwargs)
        where = find_calling_line(sys._getframe(1), self._function)
        name = func.overloadpacket.__name__
        self.num[where, name] = max(self.num[where, name], num)
        # Only the first or the last write of each element is kept, so every element is written once.
        stays = torch.ones_like(position, dtype=torch.bool)
        if where in self._first or self._first is _EVERYWHERE:
            stays[1:] = ~is_repeated
        else:
            stays[:-1] = ~is_repeated
        settled = target.clone(memory_format=torch.contiguous_format)
        settled.view(-1)[position[stays]] = values[stays]
        return target.copy_(settled) if is_in_place else settled


def _read_write(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor, bool] | None:
    """Return the target of an operation that puts values at positions without adding them; None for other operations.

    The result also holds the one-dimensional positions (int64) and values, and whether the operation writes in place.
    """
    name = func.overloadpacket.__name__
    kind = name.strip("_").removesuffix("_impl").removeprefix("unsafe_")
    is_scatter = kind == "scatter" and func._overloadname == "src"
    if func.namespace != "aten" or not (is_scatter or kind in ("index_put", "put", "index_copy")):
        return None
    given = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
    if given.get("accumulate", False):
        return None
    target: Tensor = given["self"]
    (values,) = (given[each] for each in ("values", "source", "src") if each in given)
    position = torch.arange(target.numel(), device=target.device).view(target.shape)
    if kind == "index_put":
        position = position[tuple(slice(None) if index is None else index for index in given["indices"])]
    elif kind == "put":
        position = position.take(given["index"])
    elif is_scatter:
        position = position.gather(given["dim"], given["index"])
        values = values[tuple(map(slice, given["index"].shape))]
    elif target.dim():
        position = position.index_select(given["dim"], given["index"].view(-1))
    if position.numel() < 2:
        return None
    values = values.to(target.device, target.dtype).expand(position.shape)
    return target, position.reshape(-1), values.reshape(-1), name.endswith("_")


def _find_dependence(run: CompiledRun, number: int) -> tuple[list[Repeated], dict[Repeated, str]]:
    """Make a call with colliding writes in either order.

    Returns:
        The colliding writes; and those that a result depends on, each with the difference, empty if they matter only
        together.
    """

    def run_settled(first: frozenset[str]) -> tuple[list[Repeated], Any]:
        with _WriteOrder(run.function, first) as order:
            made = _call_and_read(run, number)
        return order.repeated, made

    seen, last = run_settled(frozenset())

    def find_effect(first: frozenset[str]) -> str:
        return next(find_differences(last, run_settled(first)[1]), "")

    if not seen or not find_effect(_EVERYWHERE):
        return seen, {}
    alone = {each: find_effect(frozenset((each.where,))) for each in seen[:_MOST_LINES]}
    return seen, {each: how for each, how in alone.items() if how} or dict.fromkeys(seen, "")


def find_colliding_writes(run: CompiledRun) -> None:
    """Find colliding writes in every call of a subject, and report the worst case of each line."""
    report = run.report
    repeated: dict[str, Repeated] = {}
    read: dict[str, tuple[Repeated, str]] = {}
    for number in range(run.subject.calls):
        seen, depending = _find_dependence(run, number)
        for each in seen:
            repeated[each.where] = max(each, repeated.get(each.where, each), key=lambda one: one.num)
        for each, difference in depending.items():
            read.setdefault(each.where, (each, difference))
    report.measures["colliding_scatters"] = len(repeated)
    report.details["colliding_scatters"] = tuple(
        f"{where}: {each.num} elements{'' if where in read else ', on which no result that is read depends'}"
        for where, each in repeated.items()
    )
    for each, difference in read.values():
        how = f": if the first does, {difference}" if difference else ""
        writes = f"{each.operation} writes {each.num:,} elements different values"
        report.find("duplicate-scatters", f"{writes}, and the result depends on which one stays{how}", each.where)


def _call_and_read(run: CompiledRun, number: int) -> Any:
    """Make a call, and return what a caller can read afterwards: the output, the arguments, and the captured tensors."""
    inputs = run.subject.inputs(number)
    with restoring(run.found):
        call, error = make_call(run.function, inputs, number)
        if error is not None:
            raise error
        return copy_values((call.output, inputs, [tensor for _, tensor in run.list_captured_tensors()]))
