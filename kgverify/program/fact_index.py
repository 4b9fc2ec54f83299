"""Facts in ids, found by binary search. Nothing is built for facts that nobody looks up."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Ids: TypeAlias = tuple[int, int, int]
"""An atom in ids; an argument below 0 is a variable."""

Key: TypeAlias = Callable[[Any, Any, Any], Any]
"""A function of a predicate and two arguments, by which some engines look up facts."""

ANY: Final = -1
"""Stands for any argument."""

_MOST_REMEMBERED: Final = 1 << 18

_MOST_LISTED: Final = 1 << 14
"""The largest number of facts that are listed as tuples at once, in a few milliseconds; more are converted one by one."""


class FactIndex(Mapping[Ids, int]):
    """The index of each fact. rows: int32 [F, 3]  the facts in any order; repetitions are not found."""

    def __init__(self, rows: NDArray[np.int32]) -> None:
        self.facts = _list_facts(rows)
        # The index of each sorted fact, unless the facts ascend already.
        self._order: NDArray[np.int64] | None = None
        if not _ascend(rows):
            rows, self._order = np.unique(rows, axis=0, return_index=True)
        self._rows: Any = rows
        self._sorted = self.facts if self._order is None else _list_facts(rows)
        self._by_second: dict[int, tuple[int, NDArray[np.int64], NDArray[np.int32]]] = {}
        self._find = lru_cache(maxsize=_MOST_REMEMBERED)(self._search)
        self._keys: dict[Key, Any] = {}

    @cached_property
    def largest_id(self) -> int:
        """The largest id of the facts' predicates and arguments; -1 without facts."""
        return int(self._rows.max(initial=-1))

    @cached_property
    def largest_constant(self) -> int:
        """The largest id of the facts' arguments; -1 without facts."""
        return int(self._rows[:, 1:].max(initial=-1))

    def has_key(self, key: Key, atom: Ids) -> bool:
        """Return whether some fact has the key of an atom. key: takes ids, or int64 [F] of each column."""
        if key not in self._keys:
            self._keys[key] = np.unique(key(*self._rows.astype(np.int64).T))
        keys, sought = self._keys[key], key(*atom)
        at = int(np.searchsorted(keys, sought))
        return at < len(keys) and int(keys[at]) == sought

    def __len__(self) -> int:
        return len(self._sorted)

    def __iter__(self) -> Iterator[Ids]:
        return iter(self._sorted)

    def __getitem__(self, fact: Ids) -> int:
        found = self._find(fact)
        if found < 0:
            raise KeyError(fact)
        return found

    def __contains__(self, fact: object) -> bool:
        return self._find(fact) >= 0

    def find_like(self, predicate: int, first: int, second: int) -> Sequence[int]:
        """Return the ascending indices of the facts with a predicate and two arguments. Each argument may be ANY."""
        if first != ANY and second != ANY:
            found = self._find((predicate, first, second))
            return (found,) if found >= 0 else ()
        if second == ANY:
            low, high = (predicate, first), (predicate, first + 1)
            return self._restore(self._between(*((low, high) if first != ANY else ((predicate,), (predicate + 1,)))))
        if predicate not in self._by_second:
            own = self._between((predicate,), (predicate + 1,))
            column = self._rows[own.start : own.stop, 2]
            order = np.argsort(column, kind="stable")
            self._by_second[predicate] = own.start, order, column[order]
        begin, order, seconds = self._by_second[predicate]
        low_row, high_row = np.searchsorted(seconds, (second, second + 1))
        return self._restore((begin + order[low_row:high_row]).tolist())

    def _restore(self, found: Sequence[int]) -> Sequence[int]:
        """Return the ascending indices of some of the sorted facts."""
        if self._order is None:
            return found
        restored: list[int] = np.sort(self._order[np.asarray(found, np.int64)]).tolist()
        return restored

    def _between(self, low: tuple[int, ...], high: tuple[int, ...]) -> range:
        """Return the sorted facts from the first that begins with `low` to the last before `high`."""
        facts: Any = self._sorted
        return range(bisect_left(facts, low), bisect_left(facts, high))

    def _search(self, fact: Ids) -> int:
        # Most atoms that are looked up have a variable.
        found = bisect_left(self._sorted, fact) if min(fact) >= 0 else len(self._sorted)
        if found == len(self._sorted) or self._sorted[found] != fact:
            return -1
        return found if self._order is None else int(self._order[found])


def _ascend(rows: NDArray[np.int32]) -> bool:
    """Return whether rows are strictly ascending."""
    above, below = rows[1:], rows[:-1]
    is_equal, is_above = above == below, above > below
    is_ascending = is_above[:, 0] | (is_equal[:, 0] & (is_above[:, 1] | (is_equal[:, 1] & is_above[:, 2])))
    return bool(is_ascending.all())


def _list_facts(rows: NDArray[np.int32]) -> Sequence[Ids]:
    return list(map(tuple, rows.tolist())) if len(rows) <= _MOST_LISTED else _Facts(rows)


class _Facts(Sequence[Ids]):
    """The facts in their order."""

    def __init__(self, rows: NDArray[np.int32]) -> None:
        self._rows: Any = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        return tuple(self._rows[index].tolist())

    def __iter__(self) -> Iterator[Ids]:
        return map(tuple, self._rows.tolist())
