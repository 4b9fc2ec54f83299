"""Scatters that write one place twice: which write wins is left open. Found while the function runs, told with the line.

A place that is written twice and never read is harmless, and common: padding goes to a sink. So the function is run with
the first write winning and with the last one; only where something that it returns depends on it is there a finding.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kgverify.audit.finding import Finding
from kgverify.audit.numerics_values import Difference, Look, bits_of, differences, keep, user_line

MECHANISM: Final = (
    "a scatter without accumulation writes in no order: where two elements go to one place, either may be left there,"
    " in eager and in compiled code alike"
)
MOST_ELEMENTS: Final = 1 << 30
"""Larger targets are not looked at."""

_ATEN = torch.ops.aten


class Repeated(NamedTuple):
    """A place in the source that writes places twice. num: places that get differing values, over all calls"""

    where: str
    operation: str
    num: int


class _Write(NamedTuple):
    """target, and where in it each of the values goes: int64 positions, all one-dimensional but the target."""

    target: Tensor
    position: Tensor
    values: Tensor
    is_in_place: bool


class ScatterWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Finds repeated destinations with differing values, and can say which write wins.

    first: the lines where the first write wins; everywhere else it is the last. None: what torch does
    """

    def __init__(self, first: frozenset[str] | None = None, *, is_ordered: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._first, self._is_ordered = first or frozenset(), is_ordered
        self.num: Counter[tuple[str, str]] = Counter()
        self.num_scatters = 0
        self.num_too_large = 0

    @property
    def repeated(self) -> list[Repeated]:
        """Where places were written twice, in the order met."""
        return [Repeated(where, operation, num) for (where, operation), num in self.num.items()]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation; a scatter that writes a place twice is noted, and made in the order wanted."""
        kwargs = kwargs or {}
        write = _read_write(func, args, kwargs)
        if write is None:
            return func(*args, **kwargs)
        self.num_scatters += 1
        if write.target.numel() > MOST_ELEMENTS:
            self.num_too_large += 1
            return func(*args, **kwargs)
        position, values = write.position, write.values
        order = position.argsort(stable=True)
        place, sorted_values = position[order], bits_of(values[order])
        is_same_place = place[1:] == place[:-1]
        num = int((is_same_place & (sorted_values[1:] != sorted_values[:-1])).sum())
        if num == 0:
            return func(*args, **kwargs)
        where = user_line()
        self.num[where, func.overloadpacket.__name__] += num
        if not self._is_ordered:
            return func(*args, **kwargs)
        # Of each place the last in order, or the first: then every place is written once, and the order is ours.
        ends = torch.ones_like(place, dtype=torch.bool)
        if where in self._first:
            ends[1:] = ~is_same_place
        else:
            ends[:-1] = ~is_same_place
        out = write.target.contiguous().clone().view(-1)
        out[place[ends]] = values[order][ends]
        out = out.view(write.target.shape)
        if write.is_in_place:
            write.target.copy_(out)
            return args[0]
        return out


def _read_write(func: Any, args: Any, kwargs: Any) -> _Write | None:
    """What a scatter without accumulation writes where; None for any other operation."""
    name = func.overloadpacket.__name__
    is_in_place = name.endswith("_")
    kind = name.strip("_").removesuffix("_impl").removeprefix("unsafe_")
    if kind in ("index_put", "put"):
        given = dict(zip(("self", "indices", "values", "accumulate"), args, strict=False)) | kwargs
        given = {"indices": given.get("index"), "values": given.get("source"), **given} if kind == "put" else given
        if given.get("accumulate", False):
            return None
        target, indices, values = given["self"], given["indices"], given["values"]
        positions = _positions(target)
        if kind == "put":
            at = positions.take(indices)
        else:
            at = positions[tuple(slice(None) if i is None else i for i in indices)]
    elif kind == "index_copy":
        target, dim, index, values = args
        at = _positions(target).index_select(dim, index.view(-1)) if target.dim() else _positions(target)
    elif kind == "scatter" and func._overloadname == "src":
        target, dim, index, source = args
        at = _positions(target).gather(dim, index)
        values = source[tuple(slice(n) for n in index.shape)]
    else:
        return None
    if not isinstance(values, Tensor) or at.numel() < 2:
        return None
    return _Write(target, at.reshape(-1), values.expand(at.shape).reshape(-1).to(target.dtype), is_in_place)


def _positions(target: Tensor) -> Tensor:
    return torch.arange(target.numel(), device=target.device).view(target.shape)


def audit_scatters(run: Callable[[], Any], name: str) -> Look:
    """Run a function, which gives what is read of its results, under a watch.

    Each run must do the same. Measures: `scatters`, `scatters_repeated` (lines that write a place twice with differing
    values) and, of these, `scatters_read`, on which the result depends.
    """
    with ScatterWatch(is_ordered=True) as watch:
        last = keep(run())
    repeated = watch.repeated
    findings = []
    if repeated:
        lines = frozenset(each.where for each in repeated)
        if _differs(run, last, lines) is not None:
            for each in repeated:
                found = _differs(run, last, frozenset((each.where,)))
                if found is not None:
                    findings.append(_finding(name, each, found))
            if not findings:
                # Only together do they make a difference.
                findings = [_finding(name, each, None) for each in repeated]
    measures = {
        "scatters": float(watch.num_scatters),
        "scatters_repeated": float(len(repeated)),
        "scatters_read": float(len(findings)),
        "scatters_too_large": float(watch.num_too_large),
    }
    return Look(findings=tuple(findings), measures=measures)


def _differs(run: Callable[[], Any], last: Any, first: frozenset[str]) -> Difference | None:
    """What changes where at these lines the first write wins."""
    with ScatterWatch(first, is_ordered=True):
        other = keep(run())
    return next(differences(last, other), None)


def _finding(name: str, repeated: Repeated, difference: Difference | None) -> Finding:
    seen = (
        f"if the first write wins instead of the last, {difference}"
        if difference
        else "the result depends on the order"
    )
    return Finding(
        audit="scatter",
        mechanism=MECHANISM,
        finding=f"{name}: {repeated.operation} writes {repeated.num:,} places twice with differing values; {seen}",
        where=repeated.where,
        remedy="send what is not to be kept to a place of its own that nothing reads, or accumulate (amax, add)",
    )
