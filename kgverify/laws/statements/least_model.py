"""The least model of a small program as boolean matrices: every ground atom that follows from it."""

from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from kgverify.engines.adapters.resolution import Atoms, Ids

Relation = NDArray[np.float32]
"""float32 [C, C]: 1 where the atom of a predicate with these two constants follows, else 0."""


class Model:
    """The least model of rules and facts in ids (van Emden and Kowalski 1976): rules are applied until nothing new follows.

    A rule is applied to all constants at once: its body is a product of relations, summed over the variables that its head does
    not have. A variable of the head alone stands for every constant.
    """

    def __init__(self, facts: Iterable[Ids], rules: Iterable[tuple[Ids, Atoms]], constants: Iterable[int]) -> None:
        self._place = {constant: i for i, constant in enumerate(constants)}
        self._size = max(1, len(self._place))
        self._relations: dict[int, Relation] = {}
        for predicate, a, b in facts:
            self._relation(predicate)[self._place[a], self._place[b]] = 1
        rules = list(rules)
        is_new = True
        while is_new:
            is_new = False
            for head, body in rules:
                is_new |= self._apply(head, body)

    def has_instance(self, atom: Ids) -> bool:
        """Whether some instance of an atom follows; equal variables stand for one constant."""
        predicate, a, b = atom
        relation = self._relation(predicate)
        rows = relation if a < 0 else relation[self._place[a] : self._place[a] + 1]
        found = rows if b < 0 else rows[:, self._place[b] : self._place[b] + 1]
        return bool(np.diagonal(relation).any() if a == b and a < 0 else found.any())

    def _relation(self, predicate: int) -> Relation:
        if predicate not in self._relations:
            self._relations[predicate] = np.zeros((self._size, self._size), np.float32)
        return self._relations[predicate]

    def _apply(self, head: Ids, body: Atoms) -> bool:
        operands, labels = [], []
        for predicate, a, b in body:
            operand: NDArray[np.float32] = self._relation(predicate)
            label = ""
            if b >= 0:
                operand = operand[:, self._place[b]]
            if a >= 0:
                operand = operand[self._place[a]]
            for term in (a, b):
                label += _letter(term) if term < 0 else ""
            operands.append(operand)
            labels.append(label)
        bound = "".join(labels)
        out = "".join(dict.fromkeys(_letter(t) for t in head[1:] if t < 0 and _letter(t) in bound))
        subscripts = f"{','.join(labels)}->{out}"
        path = _path(subscripts, tuple(each.shape for each in operands))
        derived = np.einsum(subscripts, *operands, optimize=path) > 0
        # The head's matrix, over both arguments.
        axes = np.arange(self._size)
        first, second = (axes if t < 0 else np.array([self._place[t]]) for t in head[1:])
        rows, columns = np.meshgrid(first, second, indexing="ij")
        index = {_letter(t): grid_of for t, grid_of in zip(head[1:], (rows, columns), strict=True) if t < 0}
        holds = derived[tuple(index[letter] for letter in out)] if out else np.broadcast_to(derived, rows.shape)
        if head[1] < 0 and head[1] == head[2]:
            holds = holds & (rows == columns)
        relation = self._relation(head[0])
        before = relation[rows, columns]
        is_new = holds & (before == 0)
        if not is_new.any():
            return False
        relation[rows[is_new], columns[is_new]] = 1
        return True


def _letter(variable: int) -> str:
    return "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"[-1 - variable]


@lru_cache(maxsize=1 << 12)
def _path(subscripts: str, shapes: tuple[tuple[int, ...], ...]) -> list[object]:
    operands = [np.empty(shape, np.float32) for shape in shapes]
    path: list[object] = np.einsum_path(subscripts, *operands, optimize="greedy")[0]
    return path
