"""Ground atoms as a table, which reads like a tuple of named atoms.

It stores numbers, and numbers names a column at a time.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import count, repeat, starmap
from operator import itemgetter
from typing import Any, Final, overload

import numpy as np
from numpy.typing import NDArray

from kgverify.program.atoms import NamedAtom, Variable

_CHUNK: Final = 1 << 12
_PART: Final = 1 << 16
"""The number of rows that are sorted at once, unless a single predicate has more."""
_MOST_BITS: Final = 63
"""The number of bits of the numbers that are sorted."""


class Numbering(dict[str, int]):
    """The number of each name. A name that is looked up for the first time gets the next one."""

    def __missing__(self, name: str) -> int:
        """Return the number of a new name."""
        number = self[name] = len(self)
        return number

    def number_all(self, names: Sequence[str]) -> NDArray[np.int32]:
        """Return the number of each name: int32 [n]."""
        return np.fromiter(map(self.__getitem__, names), np.int32, len(names))


class AtomTable(Sequence[NamedAtom]):
    """Ground atoms in order, repetitions included. It equals a tuple of the same atoms.

    predicates, constants: the names, without repetition; a slice shares the names of the whole table
    rows:  int32 [n, 3]  the indices of the predicate and both arguments among these names; read-only
    order: int32 [m]     the first occurrence of each different row, in the order of the rows; None if unknown
    """

    def __init__(
        self,
        predicates: Sequence[str],
        constants: Sequence[str],
        rows: NDArray[np.int32],
        order: NDArray[np.int32] | None = None,
    ) -> None:
        self.predicates, self.constants, self.rows = predicates, constants, rows
        self._order = order
        rows.setflags(write=False)

    @classmethod
    def of(cls, atoms: Sequence[NamedAtom]) -> "AtomTable":
        """Return a table of ground atoms. KeyError for an atom with a variable."""
        if isinstance(atoms, AtomTable):
            return atoms
        predicates, constants = Numbering(), Numbering()
        rows = np.empty((len(atoms), 3), np.int32)
        rows[:, 0] = predicates.number_all(list(map(itemgetter(0), atoms)))
        terms: list[Any] = [term for _, first, second in atoms for term in (first, second)]
        rows[:, 1:] = constants.number_all(terms).reshape(-1, 2)
        if variable := next((term for term in constants if isinstance(term, Variable)), None):
            raise KeyError(variable)
        return cls(tuple(predicates), tuple(constants), rows)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a copy in another process: it holds the order of the different rows, not these rows again."""
        order = self.distinct[1].astype(np.int32) if "distinct" in self.__dict__ else self._order
        return {"predicates": self.predicates, "constants": self.constants, "rows": self.rows, "_order": order}

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> NamedAtom: ...
    @overload
    def __getitem__(self, index: slice) -> "AtomTable": ...
    def __getitem__(self, index: int | slice) -> "NamedAtom | AtomTable":
        if isinstance(index, slice):
            return AtomTable(self.predicates, self.constants, self.rows[index])
        predicate, first, second = self.rows[index].tolist()
        return NamedAtom(self.predicates[predicate], self.constants[first], self.constants[second])

    def __iter__(self) -> Iterator[NamedAtom]:
        return starmap(NamedAtom, self.iterate_names())

    def iterate_names(self) -> Iterator[tuple[str, str, str]]:
        """Return the predicate and both arguments of each atom as plain tuples, which is fast for many atoms."""
        names = self.predicates, self.constants, self.constants
        for begin in range(0, len(self.rows), _CHUNK):
            columns = self.rows[begin : begin + _CHUNK].T.tolist()
            yield from zip(
                *(map(each.__getitem__, column) for each, column in zip(names, columns, strict=True)), strict=True
            )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AtomTable | tuple):
            return NotImplemented
        return len(self) == len(other) and all(map(NamedAtom.__eq__, self, other))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __add__(self, other: Iterable[NamedAtom]) -> tuple[NamedAtom, ...]:
        return (*self, *other)

    def __radd__(self, other: Iterable[NamedAtom]) -> tuple[NamedAtom, ...]:
        return (*other, *self)

    def __repr__(self) -> str:
        return f"AtomTable({tuple(self)!r})"

    @cached_property
    def distinct(self) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The different rows in order, int32 [m, 3], and the first occurrence of each, int64 [m]."""
        if self._order is not None:
            # `take` copies whole rows; an index array takes several times as long.
            return np.take(self.rows, self._order, axis=0), self._order.astype(np.int64)
        return sort_rows(self.rows)

    @cached_property
    def constant_ids(self) -> dict[str, int]:
        """The index of each constant."""
        return dict(zip(self.constants, count(), strict=False))

    @cached_property
    def has_numbered_names(self) -> bool:
        """True if every name occurs, and names are numbered by first occurrence, as in a table read from files."""
        of_constants = is_numbered(self.rows[:, 1:], len(self.constants))
        return of_constants and is_numbered(self.rows[:, :1], len(self.predicates))

    def names_by_appearance(self) -> tuple[Sequence[str], Sequence[str]]:
        """Return the predicates and the constants that occur, in the order of their first occurrence."""
        if self.has_numbered_names:
            return self.predicates, self.constants
        numbers = (self.rows[:, 0], self.predicates), (self.rows[:, 1:].ravel(), self.constants)
        predicates, constants = ([names[i] for i in _find_first(column, len(names))] for column, names in numbers)
        return predicates, constants

    def names_in(self, column: int) -> set[str]:
        """Return the names of a column: predicates in column 0, arguments in columns 1 and 2."""
        names = self.constants if column else self.predicates
        occurs = np.zeros(len(names), np.bool_)
        occurs[self.rows[:, column]] = True
        if occurs.all():
            return set(names)
        return {names[i] for i in np.flatnonzero(occurs).tolist()}

    def has_common_arguments(self) -> bool:
        """Return whether some constant occurs both as a first argument and as a second argument."""
        occurs = np.zeros((2, len(self.constants)), np.bool_)
        occurs[0, self.rows[:, 1]] = occurs[1, self.rows[:, 2]] = True
        return bool(occurs.all(0).any())

    def encode(self, predicate_ids: dict[str, int], constant_ids: dict[str, int]) -> NDArray[np.int32]:
        """Return the rows in other ids: int32 [n, 3]; -1 for a name without an id."""
        rows = np.empty((len(self), 3), np.int32)
        for columns, names, ids in (
            (slice(0, 1), self.predicates, predicate_ids),
            (slice(1, 3), self.constants, constant_ids),
        ):
            numbers = np.fromiter(map(ids.get, names, repeat(-1)), np.int32, len(names))
            rows[:, columns] = numbers[self.rows[:, columns]] if len(names) else -1
        return rows

    def find_repeated(self) -> tuple[int, int]:
        """Return the number of repeated rows, and the first of them; -1 if there are no repetitions."""
        _, first = self.distinct
        num = len(self) - len(first)
        is_repeated = np.ones(len(self), np.bool_)
        is_repeated[first] = False
        return num, int(np.argmax(is_repeated)) if num else -1

    def count_common(self, other: "AtomTable") -> int:
        """Count the different atoms that another table holds as well."""
        rows, _ = self.distinct
        predicate_ids = dict(zip(self.predicates, count(), strict=False))
        encoded = other.encode(predicate_ids, self.constant_ids)
        wanted, _ = sort_rows(encoded[(encoded >= 0).all(1)])
        union, _ = sort_rows(np.concatenate((rows, wanted)))
        return len(rows) + len(wanted) - len(union)


def number_rows(rows: NDArray[np.int32], num_constants: int) -> NDArray[np.int64]:
    """Return a number for each ground atom, int32 [n, 3], that preserves their order: int64 [n]."""
    numbers = rows[:, 0].astype(np.int64)
    for column in (1, 2):
        numbers *= num_constants
        numbers += rows[:, column]
    return numbers


def sort_rows(rows: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return the different rows of ids, int32 [n, 3], in order, int32 [m, 3], and the first occurrence of each, int64 [m].

    The rows are grouped by predicate, and then sorted a few predicates at a time, which needs little memory.
    """
    bits = [int(column.max(initial=0)).bit_length() for column in rows.T]
    # numpy sorts numbers of 16 bits by radix.
    predicates = rows[:, 0].astype(np.uint16 if bits[0] <= 16 else np.int32)
    order = np.argsort(predicates, kind="stable")
    ends = np.cumsum(np.bincount(predicates))
    ordered = np.empty((len(rows), 3), np.int32)
    num = 0
    for begin, end in _divide(ends.tolist(), _MOST_BITS - bits[1] - bits[2]):
        found = np.take(rows, order[begin:end], axis=0)
        within = _order_part(found, bits)
        # `take` copies whole rows; an index array takes several times as long.
        found = np.take(found, within, axis=0)
        is_first = np.ones(len(found), np.bool_)
        differs = (found.ravel()[3:] != found.ravel()[:-3]).reshape(-1, 3)
        is_first[1:] = differs[:, 0] | differs[:, 1] | differs[:, 2]
        if not is_first.all():
            found, within = found[is_first], within[is_first]
        ordered[num : num + len(found)] = found
        order[num : num + len(found)] = order[begin:end][within]
        num += len(found)
    return ordered[:num], order[:num]


def _divide(ends: list[int], num_bits: int) -> Iterator[tuple[int, int]]:
    """Yield the bounds of parts of about `_PART` rows: several predicates if `num_bits` suffice, else one.

    ends: the end of the rows of each predicate
    """
    begin = end = predicates = 0
    for following in ends:
        num = following - begin
        if end > begin and (num > _PART or predicates.bit_length() + num.bit_length() > num_bits):
            yield begin, end
            begin, predicates = end, 0
        predicates += following > begin
        end = following
    if end > begin:
        yield begin, end


def _order_part(rows: NDArray[np.int32], bits: Sequence[int]) -> NDArray[np.int64]:
    """Return the order of rows, int64 [n], whose ids have the given numbers of bits; equal rows keep their order."""
    numbers = (rows[:, 0] - rows[0, 0]).astype(np.int64)
    if int(numbers[-1]).bit_length() + bits[1] + bits[2] + len(rows).bit_length() > _MOST_BITS:
        # One predicate with very many rows.
        order = order_numbers(rows[:, 2])
        return order[order_numbers(rows[order, 1])]
    for column in (1, 2):
        numbers <<= bits[column]
        numbers |= rows[:, column]
    return order_numbers(numbers)


def order_numbers(numbers: NDArray[np.signedinteger[Any]]) -> NDArray[np.int64]:
    """Return the order of nonnegative numbers, int64 [n]; equal numbers keep their order.

    numpy sorts numbers several times faster than it finds their order. So their positions are packed into them.
    """
    position_bits = len(numbers).bit_length()
    if int(numbers.max(initial=0)).bit_length() + position_bits > _MOST_BITS:
        return np.argsort(numbers, kind="stable")
    packed = numbers.astype(np.int64)
    packed <<= position_bits
    packed |= np.arange(len(numbers))
    packed.sort()
    packed &= (1 << position_bits) - 1
    return packed


def _find_first(numbers: NDArray[np.int32], size: int) -> list[int]:
    """Return the different numbers, all below `size`, in the order of their first occurrence."""
    first = np.full(size, len(numbers), np.int32)
    # If an index is repeated, its last value counts.
    first[numbers[::-1]] = np.arange(len(numbers) - 1, -1, -1, dtype=np.int32)
    found: list[int] = np.argsort(first, kind="stable")[: int((first < len(numbers)).sum())].tolist()
    return found


def is_numbered(numbers: NDArray[np.int32], size: int) -> bool:
    """Return whether numbers, int32 [n, k], first occur in ascending order, and are all the numbers below `size`."""
    most = np.maximum.accumulate(numbers.ravel())
    if not len(most):
        return not size
    is_ascending = most[0] == 0 and most[-1] == size - 1 and np.diff(most).max(initial=0) <= 1
    return bool(is_ascending and numbers.min() >= 0)
