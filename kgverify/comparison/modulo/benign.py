"""The benign differences of two traces: steps that are equal only up to what was declared."""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.modulo.normalise import normalise_steps
from kgverify.comparison.modulo.policy import Modulo, order_kinds, smaller_first
from kgverify.comparison.result import Benign
from kgverify.trace.model.columns import select_steps
from kgverify.trace.model.digests import compute_digests
from kgverify.trace.model.trace import Trace


class BenignSteps(NamedTuple):
    """Steps whose difference belongs to one kind: their candidates, in order, and the first of them with both sides."""

    kind: str
    candidates: NDArray[np.int64]
    first: Benign


class BenignCount:
    """The benign differences of whole traces, added up."""

    def __init__(self) -> None:
        self._num_steps: Counter[str] = Counter()
        self._candidates: dict[str, list[NDArray[np.integer]]] = {}
        self._first: dict[str, Benign] = {}

    def add(self, found: BenignSteps, rows: NDArray[np.integer]) -> None:
        """Add steps, given the rows of their candidates in the whole trace."""
        candidates = rows[found.candidates].astype(np.int64)
        self._num_steps[found.kind] += len(candidates)
        self._candidates.setdefault(found.kind, []).append(np.unique(candidates))
        first = msgspec.structs.replace(found.first, candidate=int(candidates[0]))
        self._keep_first(found.kind, first)

    def join(self, other: "BenignCount", owner: NDArray[np.integer]) -> None:
        """Add what another comparison counted. owner: int [N], this trace's candidate for each of the other's."""
        for kind, num in other._num_steps.items():
            self._num_steps[kind] += num
            self._candidates.setdefault(kind, []).append(owner[other.candidates(kind)])
            first = other._first[kind]
            self._keep_first(kind, msgspec.structs.replace(first, candidate=int(owner[first.candidate])))

    def candidates(self, kind: str) -> NDArray[np.int64]:
        """Return the candidates with differences of a kind, in order."""
        return np.unique(np.concatenate([np.zeros(0, np.int64), *self._candidates.get(kind, ())]))

    def listed(self) -> tuple[Benign, ...]:
        """Return the differences, kind by kind."""
        return tuple(
            msgspec.structs.replace(
                self._first[kind], num_steps=self._num_steps[kind], num_candidates=len(self.candidates(kind))
            )
            for kind in order_kinds(self._num_steps)
        )

    def _keep_first(self, kind: str, first: Benign) -> None:
        known = self._first.get(kind)
        if known is None or (first.candidate, first.step) < (known.candidate, known.step):
            self._first[kind] = first


def find_kinds(
    raw: tuple[Trace, Trace],
    rows: tuple[NDArray[np.int64], NDArray[np.int64]],
    modulo: Modulo,
    ignored: tuple[str, ...],
) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Yield each kind with the indices of the pairs of steps whose difference belongs to it.

    A difference belongs to the smallest set of kinds up to which the two steps are equal.

    raw:  both traces as recorded, in one numbering, without the columns ignored
    rows: of steps of both that differ, and that are equal up to all kinds
    """
    chosen: dict[str, list[NDArray[np.int64]]] = {}
    left = np.arange(len(rows[0]))
    for kinds in smaller_first(modulo):
        is_equal = np.ones(len(left), np.bool_)
        if kinds != modulo:
            words = []
            for trace, own in zip(raw, rows, strict=True):
                columns = normalise_steps(select_steps(trace.columns, own[left]), kinds, ignored)
                words.append(compute_digests(columns).sequence)
            is_equal = words[0] == words[1]
        for kind in kinds:
            chosen.setdefault(kind, []).append(left[is_equal])
        left = left[~is_equal]
    for kind in order_kinds(chosen):
        indices = np.sort(np.concatenate(chosen[kind]))
        if len(indices):
            yield kind, indices
