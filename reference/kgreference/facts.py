"""The facts of a program, in order, with look-up by their arguments: as a list, or as columns for a large graph."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import count
from typing import Any, Final, TypeAlias, overload

from kgreference.terms import Triple

MOST_FOUND: Final = 200_000
"""The largest number of atoms whose indices columns remember, whether facts or not. Beyond it they forget all."""


class FactList(list[Triple]):
    """Facts as a list of tuples, with a dict of their indices."""

    def __init__(self, facts: Iterable[Triple]) -> None:
        super().__init__(sorted(set(facts)))
        self._number()

    def _number(self) -> None:
        self._index_of: dict[Triple, int] = dict(zip(self, count(), strict=False))
        self._by_second: dict[int, dict[int, list[int]]] = {}

    def find_extremes(self) -> tuple[Triple, Triple]:
        """Return the lowest and the highest number of each column."""
        lowest, highest = (tuple(map(reduce, zip(*self, strict=True))) for reduce in (min, max))
        return lowest, highest

    @property
    def is_disjoint(self) -> Callable[[Iterable[Triple]], bool]:
        """A function that returns whether no atom of a collection is a fact."""
        return self._index_of.keys().isdisjoint

    def find(self, fact: Triple) -> int:
        """Return the index of a fact; -1 if no fact equals the atom."""
        return self._index_of.get(fact, -1)

    def with_predicate(self, predicate: int) -> Sequence[int]:
        """Return the indices of the facts of a predicate."""
        return self._between((predicate,), (predicate + 1,))

    def with_first(self, predicate: int, first: int) -> Sequence[int]:
        """Return the indices of the facts of a predicate with a first argument."""
        return self._between((predicate, first), (predicate, first + 1))

    def with_second(self, predicate: int, second: int) -> list[int]:
        """Return the ascending indices of the facts of a predicate with a second argument."""
        if predicate not in self._by_second:
            found: dict[int, list[int]] = {}
            for number in self.with_predicate(predicate):
                found.setdefault(self[number][2], []).append(number)
            self._by_second[predicate] = found
        return self._by_second[predicate].get(second, [])

    def _between(self, low: tuple[int, ...], high: tuple[int, ...]) -> range:
        """Return the indices of the facts from the first that begins with ``low`` to the last before ``high``."""
        facts: Any = self
        return range(bisect_left(facts, low), bisect_left(facts, high))


class ListedFacts(FactList):
    """Facts in the order given. Of equal facts, the first one counts."""

    def __init__(self, facts: Iterable[Triple]) -> None:
        list.__init__(self, dict.fromkeys(facts))
        self._number()
        self._by_first: dict[tuple[int, ...], list[int]] = {}
        for number, (predicate, first, _) in enumerate(self):
            self._by_first.setdefault((predicate,), []).append(number)
            self._by_first.setdefault((predicate, first), []).append(number)

    def with_predicate(self, predicate: int) -> Sequence[int]:
        """Return the ascending indices of the facts of a predicate."""
        return self._by_first.get((predicate,), [])

    def with_first(self, predicate: int, first: int) -> Sequence[int]:
        """Return the ascending indices of the facts of a predicate with a first argument."""
        return self._by_first.get((predicate, first), [])


class FactColumns(Sequence[Triple]):
    """Facts as three columns, found by binary search.

    Nothing is built for facts that nobody looks up. ``predicates``, ``firsts`` and ``seconds`` are buffers of integers
    with the same length, such as an ``array``. Their rows must be strictly ascending, which is not checked here.
    ``extremes`` are the lowest and the highest number of each column, if the caller knows them.

    Raises ValueError for columns of different lengths.
    """

    def __init__(
        self,
        predicates: Collection[int],
        firsts: Collection[int],
        seconds: Collection[int],
        extremes: tuple[Triple, Triple] | None = None,
    ) -> None:
        views: list[Any] = [memoryview(column) for column in (predicates, firsts, seconds)]  # type: ignore[arg-type]
        if len({len(view) for view in views}) > 1:
            raise ValueError(f"the columns of facts must be equally long, found {[len(view) for view in views]}")
        self._predicates, self._firsts, self._seconds = views
        self._extremes = extremes
        self._found: dict[Triple, int] = {}
        self._ranges: dict[int, range] = {}
        self._by_second: dict[int, tuple[array[int], array[int]]] = {}

    def __len__(self) -> int:
        return len(self._predicates)

    @overload
    def __getitem__(self, index: int) -> Triple: ...
    @overload
    def __getitem__(self, index: slice) -> list[Triple]: ...
    def __getitem__(self, index: int | slice) -> Triple | list[Triple]:
        if isinstance(index, slice):
            return list(zip(self._predicates[index], self._firsts[index], self._seconds[index], strict=True))
        return self._predicates[index], self._firsts[index], self._seconds[index]

    def __iter__(self) -> Iterator[Triple]:
        return zip(self._predicates, self._firsts, self._seconds, strict=True)

    def find_extremes(self) -> tuple[Triple, Triple]:
        """Return the lowest and the highest number of each column."""
        if self._extremes is None:
            columns = self._predicates, self._firsts, self._seconds
            lowest, highest = (tuple(map(reduce, columns)) for reduce in (min, max))
            self._extremes = lowest, highest
        return self._extremes

    def find(self, fact: Triple) -> int:
        """Return the index of a fact; -1 if no fact equals the atom, or if it holds a variable."""
        found = self._found.get(fact)
        if found is None:
            found = self._search(fact) if fact[1] >= 0 and fact[2] >= 0 else -1
            if len(self._found) >= MOST_FOUND:
                self._found.clear()
            self._found[fact] = found
        return found

    def is_disjoint(self, atoms: Iterable[Triple]) -> bool:
        """Return whether no atom is a fact."""
        # Most atoms contain a variable, and so are not facts.
        find = self.find
        for atom in atoms:  # noqa: SIM110  a loop takes half the time of `any`
            if atom[1] >= 0 <= atom[2] and find(atom) >= 0:
                return False
        return True

    def _search(self, fact: Triple) -> int:
        predicate, first, second = fact
        of = self.with_first(predicate, first)
        index = bisect_left(self._seconds, second, of.start, of.stop)
        return index if index < of.stop and self._seconds[index] == second else -1

    def with_predicate(self, predicate: int) -> range:
        """Return the indices of the facts of a predicate."""
        if predicate not in self._ranges:
            begin = bisect_left(self._predicates, predicate)
            self._ranges[predicate] = range(begin, bisect_right(self._predicates, predicate, begin))
        return self._ranges[predicate]

    def with_first(self, predicate: int, first: int) -> range:
        """Return the indices of the facts of a predicate with a first argument."""
        of = self.with_predicate(predicate)
        begin = bisect_left(self._firsts, first, of.start, of.stop)
        if begin == of.stop or self._firsts[begin] != first:
            return range(begin, begin)
        return range(begin, bisect_right(self._firsts, first, begin, of.stop))

    def with_second(self, predicate: int, second: int) -> Sequence[int]:
        """Return the ascending indices of the facts of a predicate with a second argument."""
        if predicate not in self._by_second:
            # The sort is stable, so equal arguments keep their order.
            order = sorted(self.with_predicate(predicate), key=self._seconds.__getitem__)
            self._by_second[predicate] = array("q", order), array("q", map(self._seconds.__getitem__, order))
        order_by_second, seconds = self._by_second[predicate]
        begin = bisect_left(seconds, second)
        return order_by_second[begin : bisect_right(seconds, second, begin)].tolist()


Facts: TypeAlias = FactList | FactColumns
"""Distinct facts, ascending by (predicate, first, second) unless they are listed. The index of a fact is its place."""
