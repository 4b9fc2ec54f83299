"""The join of a rule's body with ground atoms, by sorting and searching numpy arrays."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kgverify.program.atoms import Atom
from kgverify.trace.model.columns import cut_rows, starts_of

NO_LIMIT: Final = 1 << 62
CHUNK: Final = 1 << 20

Bindings = dict[int, NDArray[np.int64]]
"""The constants of each variable, with one row for each substitution."""


class Joins:
    """The joins of rule bodies over sorted atoms, int64 [n, 3].

    has_identity: whether different variables of a rule stand for different constants, none of them a constant of the rule
    """

    def __init__(
        self, atoms: NDArray[np.int64], size: int, most_rows: int = NO_LIMIT, *, has_identity: bool = False
    ) -> None:
        self._atoms, self._size, self._most_rows, self._has_identity = atoms, size, most_rows, has_identity
        self._sorted: dict[
            tuple[object, ...], tuple[list[NDArray[np.int64]], NDArray[np.int64], NDArray[np.int64]]
        ] = {}
        self._constants: set[int] = set()
        self.num_rows = 0

    @property
    def is_exhausted(self) -> bool:
        """True if the joins reached the limit and stopped."""
        return self.num_rows > self._most_rows

    def apply(self, head: Atom, body: Sequence[Atom], bindings: Bindings | None = None) -> Iterator[NDArray[np.int64]]:
        """Yield the heads, int64 [k, 3], of the rule's instances whose bodies are among the atoms.

        bindings: the constants of some variables, if only these are of interest
        """
        bound = {} if bindings is None else bindings
        num = len(next(iter(bound.values()))) if bound else 1
        self._constants = {term for atom in (head, *body) for term in atom[1:] if term >= 0}
        for joined, num_joined in self._join(*self._tell_apart(bound, num), tuple(body), set(head[1:])):
            yield from self._instantiate(head, joined, num_joined)

    def _tell_apart(self, bindings: Bindings, num: int) -> tuple[Bindings, int]:
        """Keep the rows in which no constant occurs twice, if the joins have identity."""
        if not self._has_identity or not bindings:
            return bindings, num
        columns = list(bindings.values())
        is_kept = ~np.isin(columns, list(self._constants)).any(0)
        for left, right in combinations(columns, 2):
            is_kept &= left != right
        return {term: column[is_kept] for term, column in bindings.items()}, int(is_kept.sum())

    def _join(
        self, bindings: Bindings, num: int, body: tuple[Atom, ...], wanted: set[int]
    ) -> Iterator[tuple[Bindings, int]]:
        if not body or not num:
            if num:
                yield bindings, num
            return
        # Prefer an atom that shares a variable; without a shared variable the rows multiply.
        i = max(range(len(body)), key=lambda each: sum(term in bindings for term in body[each][1:]))
        atom, others = body[i], body[:i] + body[i + 1 :]
        needed = wanted.union(*(each[1:] for each in others))
        found, order, low, count = self._match(atom, bindings, num)
        starts = starts_of(count)
        for begin, end in cut_rows(starts, CHUNK):
            if self.is_exhausted:
                return
            left = np.repeat(np.arange(begin, end), count[begin:end])
            self.num_rows += len(left)
            offset = np.arange(len(left)) - np.repeat(starts[begin:end] - starts[begin], count[begin:end])
            right = order[low[left] + offset]
            joined = {term: column[right] for term, column in found.items()}
            joined |= {term: column[left] for term, column in bindings.items()}
            if self._has_identity:
                yield from self._join(*self._tell_apart(joined, len(left)), others, wanted)
                continue
            kept = {term: column for term, column in joined.items() if term in needed}
            yield from self._join(*self._distinct(kept, len(left)), others, wanted)

    def _match(
        self, atom: Atom, bindings: Bindings, num: int
    ) -> tuple[Bindings, NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Find the atoms that match each row.

        Return the constants of the body atom's variables, a sort order of them, and each row's first position and number in
        this order.
        """
        predicate, first, second = atom
        columns = {term: column for column, term in ((2, second), (1, first)) if term < 0}
        terms = sorted(columns, key=columns.__getitem__)
        shared = tuple(term for term in terms if term in bindings)
        constants = tuple(max(term, -1) for term in (first, second))
        key = predicate, constants, first == second, tuple(columns[term] for term in shared)
        if key not in self._sorted:
            rows = self._atoms[slice(*np.searchsorted(self._atoms[:, 0], (predicate, predicate + 1)))]
            for column, term in ((1, first), (2, second)):
                if term >= 0:
                    rows = rows[rows[:, column] == term]
            if first == second and first < 0:
                rows = rows[rows[:, 1] == rows[:, 2]]
            there = np.zeros(len(rows), np.int64)
            for term in shared:
                there = there * self._size + rows[:, columns[term]]
            order = np.argsort(there, kind="stable")
            self._sorted[key] = [rows[:, columns[term]] for term in terms], order, there[order]
        found, order, there = self._sorted[key]
        here = np.zeros(num, np.int64)
        for term in shared:
            here = here * self._size + bindings[term]
        low = np.searchsorted(there, here, "left")
        return dict(zip(terms, found, strict=True)), order, low, np.searchsorted(there, here, "right") - low

    def _distinct(self, bindings: Bindings, num: int) -> tuple[Bindings, int]:
        """Return each row once, if there are at most two columns."""
        terms = list(bindings)
        if not terms:
            return bindings, min(num, 1)
        if len(terms) > 2:
            return bindings, num
        if len(terms) == 1:
            packed = np.unique(bindings[terms[0]])
            return {terms[0]: packed}, len(packed)
        first, second = terms
        packed = np.unique(bindings[first] * self._size + bindings[second])
        return {first: packed // self._size, second: packed % self._size}, len(packed)

    def _instantiate(self, head: Atom, bindings: Bindings, num: int) -> Iterator[NDArray[np.int64]]:
        """Yield the heads; a variable that occurs only in the head stands for every constant."""
        free = list(dict.fromkeys(term for term in head[1:] if term < 0 and term not in bindings))
        if free:
            constants = np.arange(self._size)
            most = max(1, CHUNK // self._size)
            for begin in range(0, num, most):
                num_here = min(num - begin, most)
                self.num_rows += num_here * self._size
                if self.is_exhausted:
                    return
                rows = np.repeat(np.arange(begin, begin + num_here), self._size)
                bound = {term: column[rows] for term, column in bindings.items()}
                bound[free[0]] = np.tile(constants, num_here)
                yield from self._instantiate(head, *self._tell_apart(bound, num_here * self._size))
            return
        columns = [bindings[term] if term < 0 else np.full(num, term, np.int64) for term in head[1:]]
        yield np.column_stack((np.full(num, head[0], np.int64), *columns))
