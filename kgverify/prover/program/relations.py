"""Sets of ground atoms as sorted keys, and joins of their bindings, for the least model.

A relation holds the arguments of the atoms of one predicate, as keys `first * C + second`, where C is the number of
constants. A table holds bindings: one column for each variable, without repeated rows. No result is larger than its
inputs, except the result of `expand`, which processes its rows in parts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from kgverify.program.atoms import Atom

_PRODUCTS_OF_ROW: Final = 256
"""The number of multiplications of a matrix product that take less time than forming, sorting and comparing a row."""


@dataclass(frozen=True, eq=False)
class Relation:
    """The atoms of one predicate. keys: int64 [n], strictly ascending; num_constants: C."""

    keys: Tensor
    num_constants: int

    def __len__(self) -> int:
        return len(self.keys)

    @cached_property
    def by_second(self) -> Tensor:
        """The keys `second * C + first`, int64 [n], ascending."""
        c = self.num_constants
        return (self.keys % c * c + self.keys // c).sort().values

    def select(self, atom: Atom) -> "View":
        """Return the bindings of an atom's variables in the relation."""
        _, first, second = atom
        c = self.num_constants
        if first >= 0 and second >= 0:
            key = first * c + second
            return View((), _between(self.keys, key, key + 1), c)
        if first >= 0:
            return View((second,), _between(self.keys, first * c, (first + 1) * c) % c, c)
        if second >= 0:
            return View((first,), _between(self.by_second, second * c, (second + 1) * c) % c, c)
        if first == second:
            a, b = self.keys // c, self.keys % c
            return View((first,), a[a == b], c)
        return View((first, second), self.keys, c, self)


class View(NamedTuple):
    """The bindings of at most two variables.

    values: int64 [n], ascending: keys of two variables, or constants of one variable; without variables, one value if
            the atom holds
    """

    variables: tuple[int, ...]
    values: Tensor
    num_constants: int
    relation: Relation | None = None

    def keys_by(self, variable: int) -> Tensor:
        """Return the keys of two variables with the given one first, int64 [n], ascending."""
        assert self.relation is not None
        return self.values if variable == self.variables[0] else self.relation.by_second

    def project(self, variable: int) -> Tensor:
        """Return the values of one of its variables, int64 [m], strictly ascending."""
        if len(self.variables) == 1:
            return self.values
        values: Tensor = torch.unique_consecutive(self.keys_by(variable) // self.num_constants)
        return values


class Table(NamedTuple):
    """A table of bindings. columns: int64 [size] for each variable; without variables, a row means that something holds."""

    columns: dict[int, Tensor]
    size: int


def whole(view: View) -> Table:
    """Return all bindings of a view."""
    if not view.variables:
        return Table({}, min(1, len(view.values)))
    if len(view.variables) == 1:
        return Table({view.variables[0]: view.values}, len(view.values))
    first, second = view.variables
    c = view.num_constants
    return Table({first: view.values // c, second: view.values % c}, len(view.values))


def keep_columns(table: Table, needed: set[int], num_constants: int) -> Table:
    """Drop the variables that are not needed, and the repeated rows that result."""
    kept = {variable: column for variable, column in table.columns.items() if variable in needed}
    if len(kept) == len(table.columns):
        return table
    columns = list(kept.values())
    if not columns:
        return Table({}, min(1, table.size))
    if len(columns) == 1:
        values = sort_once(columns[0])
        return Table(dict(zip(kept, (values,), strict=True)), len(values))
    if len(columns) == 2:
        keys = sort_once(columns[0] * num_constants + columns[1])
        return Table(dict(zip(kept, (keys // num_constants, keys % num_constants), strict=True)), len(keys))
    rows = torch.stack(columns, 1).unique(dim=0)  # type: ignore[no-untyped-call]
    return Table(dict(zip(kept, rows.unbind(1), strict=True)), len(rows))


def is_filter(table: Table, view: View, needed: set[int]) -> bool:
    """Return whether joining a view binds no needed variable."""
    return all(variable in table.columns or variable not in needed for variable in view.variables)


def filter_rows(table: Table, view: View) -> Table:
    """Keep the rows that agree with some binding of the view."""
    bound = [variable for variable in view.variables if variable in table.columns]
    if not len(view.values):
        return Table({variable: column[:0] for variable, column in table.columns.items()}, 0)
    if not bound:
        return table
    if len(bound) == 2:
        first, second = (table.columns[variable] for variable in view.variables)
        is_kept = is_among(first * view.num_constants + second, view.values)
    elif len(view.variables) == 1:
        is_kept = is_among(table.columns[bound[0]], view.values)
    else:
        begin, end = _ranges(view.keys_by(bound[0]), table.columns[bound[0]], view.num_constants)
        is_kept = begin < end
    columns = {variable: column[is_kept] for variable, column in table.columns.items()}
    return Table(columns, len(next(iter(columns.values()))))


def expand(table: Table, view: View, needed: set[int], most_rows: int) -> Iterator[Table]:
    """Join the rows with the bindings of the view that agree with them, in tables of about `most_rows` rows.

    The bindings of one row stay together, so a table may exceed `most_rows` by up to the number of the view's values.
    Variables that are not needed may be dropped, with the resulting repetitions.
    """
    bound = [variable for variable in view.variables if variable in table.columns]
    new = [variable for variable in view.variables if variable not in table.columns and variable in needed]
    c = view.num_constants
    if bound:
        keys = view.keys_by(bound[0])
        begin, end = _ranges(keys, table.columns[bound[0]], c)
        values: Sequence[Tensor] = (keys % c,)
    else:
        if len(new) == 1:
            values = (view.project(new[0]),)
        else:
            values = tuple(whole(view).columns[variable] for variable in new)
        begin = torch.zeros(table.size, dtype=torch.int64, device=view.values.device)
        end = torch.full_like(begin, len(values[0]))
    count = end - begin
    total = count.cumsum(0)
    links = [variable for variable in table.columns if variable not in needed]
    is_composed = len(table.columns) == 2 and bound == links and len(new) == 1
    if is_composed and c**2 <= most_rows and c**3 <= _PRODUCTS_OF_ROW * int(total[-1]):
        yield _compose(table, view, links[0], new[0])
        return
    for low, high in _parts(total, most_rows):
        in_part = count[low:high]
        row = torch.repeat_interleave(torch.arange(low, high, device=count.device), in_part)
        start = total[low:high] - in_part - (total[low - 1] if low else 0)
        index = torch.arange(len(row), device=count.device) - start[row - low] + begin[row]
        columns = {variable: column[row] for variable, column in table.columns.items()}
        columns |= {variable: value[index] for variable, value in zip(new, values, strict=True)}
        yield Table(columns, len(row))


def _compose(table: Table, view: View, link: int, new: int) -> Table:
    """Join two columns with a view that shares the variable `link`, and drop `link`: a product of matrices of 0 and 1."""
    c = view.num_constants
    (kept,) = table.columns.keys() - {link}

    def matrix(keys: Tensor) -> Tensor:
        return torch.zeros(c * c, device=keys.device).index_fill_(0, keys, 1.0).view(c, c)

    ways = matrix(table.columns[kept] * c + table.columns[link]) @ matrix(view.keys_by(link))
    first, second = ways.nonzero(as_tuple=True)
    return Table({kept: first, new: second}, len(first))


def sort_once(values: Tensor) -> Tensor:
    """Sort the values, int64 [n], and drop repetitions."""
    if values.is_cuda:
        distinct: Tensor = torch.unique_consecutive(values.sort().values)
        return distinct
    # NumPy sorts far faster on a CPU.
    ascending = np.sort(values.numpy())
    is_first = np.ones(len(ascending), np.bool_)
    np.not_equal(ascending[1:], ascending[:-1], out=is_first[1:])
    return torch.from_numpy(ascending[is_first])


def is_among(values: Tensor, ascending: Tensor) -> Tensor:
    """Return whether each value, int64 [n], is among ascending values, int64 [m]: bool [n]."""
    if not len(ascending):
        return torch.zeros(len(values), dtype=torch.bool, device=values.device)
    index = torch.searchsorted(ascending, values).clamp(max=len(ascending) - 1)
    return ascending[index] == values


def _between(ascending: Tensor, low: int, high: int) -> Tensor:
    bounds = torch.tensor([low, high], device=ascending.device)
    begin, end = torch.searchsorted(ascending, bounds).tolist()
    return ascending[begin:end]


def _ranges(keys: Tensor, lead: Tensor, num_constants: int) -> tuple[Tensor, Tensor]:
    """Return the bounds of the keys with each leading constant: two int64 [n]."""
    low = lead * num_constants
    return torch.searchsorted(keys, low), torch.searchsorted(keys, low + num_constants)


def _parts(total: Tensor, most: int) -> Iterator[tuple[int, int]]:
    """Split rows into parts whose counts, the differences of `total`, add up to about `most`; at least one row each."""
    if not len(total):
        return
    if int(total[-1]) <= most:
        yield 0, len(total)
        return
    low, done = 0, 0
    while low < len(total):
        high = max(low + 1, int(torch.searchsorted(total, done + most, right=True)))
        yield low, high
        low, done = high, int(total[high - 1])
