"""The check of a least model: whether the rules conclude exactly its atoms.

If the model contains the facts and every conclusion from its atoms, nothing that follows is missing (van Emden and Kowalski
1976). If every atom that is not a fact is a conclusion, every atom is supported. The check shares no code with the model: it
applies every rule once to the whole model, by sorting and searching numpy arrays.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.program.atoms import Atom
from kgverify.program.program import Program
from kgverify.trace.model.columns import cut_rows, starts_of

MOST_ROWS: Final = 1 << 26
"""The maximum number of rows of all joins together. At this limit the check stops and is incomplete."""

_CHUNK: Final = 1 << 20

Bindings = dict[int, NDArray[np.int64]]
"""The constants of each variable, with one row for each substitution."""


class ModelCheck(NamedTuple):
    """The result of the check.

    missing:     int64 [m, 3]  atoms that follow in one step from the model but are not in it
    unsupported: int64 [u, 3]  atoms of the model that are neither facts nor conclusions; empty if the check is incomplete
    num_atoms:   the number of atoms of the model
    num_rows:    the number of rows of all joins
    is_complete: whether every rule was applied to the whole model
    """

    missing: NDArray[np.int64]
    unsupported: NDArray[np.int64]
    num_atoms: int
    num_rows: int
    is_complete: bool

    @property
    def is_closed(self) -> bool:
        """True if the model certainly contains everything that follows."""
        return self.is_complete and not len(self.missing)


def check_model(program: Program, keys: NDArray[np.int64], most_rows: int = MOST_ROWS) -> ModelCheck:
    """Check a model of the program, given as the keys `(predicate * C + first) * C + second`; C is the number of constants."""
    size = max(1, len(program.symbols.constants))
    keys = np.unique(keys)
    predicate, rest = np.divmod(keys, size * size)
    atoms = np.column_stack((predicate, *np.divmod(rest, size)))
    facts = program.facts.astype(np.int64)
    concluded = [_number(facts, size)]
    joins = _Joins(atoms, size, most_rows)
    for rule in program.rules:
        concluded += [np.unique(_number(heads, size)) for heads in joins.apply(rule.clause_head, rule.body)]
        if joins.is_exhausted:
            break
    every = np.unique(np.concatenate(concluded))
    missing = every[~np.isin(every, keys, assume_unique=True)]
    unsupported = keys[:0] if joins.is_exhausted else keys[~np.isin(keys, every, assume_unique=True)]
    return ModelCheck(
        _decode(missing, size), _decode(unsupported, size), len(keys), joins.num_rows, not joins.is_exhausted
    )


def _decode(keys: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    return np.column_stack((keys // size**2, keys // size % size, keys % size))


class _Joins:
    """The joins of rule bodies over sorted atoms, int64 [n, 3]."""

    def __init__(self, atoms: NDArray[np.int64], size: int, most_rows: int) -> None:
        self._atoms, self._size, self._most_rows = atoms, size, most_rows
        self.num_rows = 0

    @property
    def is_exhausted(self) -> bool:
        """True if the joins reached the limit and stopped."""
        return self.num_rows > self._most_rows

    def apply(self, head: Atom, body: Sequence[Atom]) -> Iterator[NDArray[np.int64]]:
        """Yield the heads, int64 [k, 3], of the rule's instances whose bodies are among the atoms."""
        for bindings, num in self._join({}, 1, tuple(body), set(head[1:])):
            yield from self._instantiate(head, bindings, num)

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
        for begin, end in cut_rows(starts, _CHUNK):
            if self.is_exhausted:
                return
            left = np.repeat(np.arange(begin, end), count[begin:end])
            self.num_rows += len(left)
            offset = np.arange(len(left)) - np.repeat(starts[begin:end] - starts[begin], count[begin:end])
            right = order[low[left] + offset]
            joined = {term: column[right] for term, column in found.items()}
            joined |= {term: column[left] for term, column in bindings.items()}
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
        rows = self._atoms[slice(*np.searchsorted(self._atoms[:, 0], (predicate, predicate + 1)))]
        for column, term in ((1, first), (2, second)):
            if term >= 0:
                rows = rows[rows[:, column] == term]
        if first == second and first < 0:
            rows = rows[rows[:, 1] == rows[:, 2]]
        found = {term: rows[:, column] for column, term in ((1, first), (2, second)) if term < 0}
        shared = [term for term in found if term in bindings]
        there, here = np.zeros(len(rows), np.int64), np.zeros(num, np.int64)
        for term in shared:
            there, here = there * self._size + found[term], here * self._size + bindings[term]
        order = np.argsort(there, kind="stable")
        low = np.searchsorted(there[order], here, "left")
        return found, order, low, np.searchsorted(there[order], here, "right") - low

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
            most = max(1, _CHUNK // self._size)
            for begin in range(0, num, most):
                num_here = min(num - begin, most)
                self.num_rows += num_here * self._size
                if self.is_exhausted:
                    return
                rows = np.repeat(np.arange(begin, begin + num_here), self._size)
                bound = {term: column[rows] for term, column in bindings.items()}
                bound[free[0]] = np.tile(constants, num_here)
                yield from self._instantiate(head, bound, num_here * self._size)
            return
        columns = [bindings[term] if term < 0 else np.full(num, term, np.int64) for term in head[1:]]
        yield np.column_stack((np.full(num, head[0], np.int64), *columns))


def _number(atoms: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    numbers: NDArray[np.int64] = (atoms[:, 0] * size + atoms[:, 1]) * size + atoms[:, 2]
    return numbers
