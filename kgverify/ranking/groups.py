"""Candidates grouped by query and side, in the order in which they are drawn: the true triple comes first."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.ranking.truth import group_keys
from kgverify.trace.model.columns import Candidates, CandidateSet, count_where


class Groups(NamedTuple):
    """Candidates N by query and side, G of them, ascending.

    starts:   int64 [G + 1]
    query:    int32 [G]; side: int8 [G]
    has_true: bool  [G]  whether the first of the group is the true triple; no other is
    """

    starts: NDArray[np.int64]
    query: NDArray[np.int32]
    side: NDArray[np.int8]
    has_true: NDArray[np.bool_]

    @property
    def counts(self) -> NDArray[np.int64]:
        """The number of candidates of each group: int64 [G]."""
        counts: NDArray[np.int64] = np.diff(self.starts)
        return counts

    @property
    def true(self) -> NDArray[np.int64]:
        """The rows of the true triples."""
        return self.starts[:-1][self.has_true]

    def repeat(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the value of each candidate's group: [N] from [G]."""
        return np.repeat(values, self.counts, axis=0)

    def count_where(self, mask: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Count the candidates of each group for which the mask, bool [N], holds: int64 [G]."""
        return count_where(mask, self.starts)


def find_groups(candidates: Candidates | CandidateSet, triples: NDArray[np.int32]) -> Groups | None:
    """Return the groups of candidates that are in the order in which they are drawn, each once; None for another order.

    triples: int32 [n, 3], the split that `candidates.query` points into. In a group the corruptions ascend, of one predicate.
    """
    groups = divide(candidates, triples)
    if not len(candidates.query):
        return groups
    atom, first, counts = candidates.atom, groups.starts[:-1], groups.counts
    group = group_keys(groups)
    predicate, arguments = atom[:, 0], _pack(atom)
    triple = triples[groups.query]
    is_first = np.zeros(len(atom), np.bool_)
    is_first[first] = True
    # A true triple in front is not one of the ascending corruptions.
    is_apart = is_first.copy()
    is_apart[(first + 1)[groups.has_true & (counts > 1)]] = True
    is_ascending = arguments[1:] > arguments[:-1]
    is_ascending |= is_apart[1:]
    is_true = arguments == groups.repeat(_pack(triple))
    is_true &= ~is_first
    is_drawn = (
        (group[1:] > group[:-1]).all()
        and is_ascending.all()
        and (predicate == groups.repeat(predicate[first])).all()
        and not (is_true & (predicate == groups.repeat(triple[:, 0]))).any()
    )
    return groups if is_drawn else None


def divide(candidates: Candidates | CandidateSet, triples: NDArray[np.int32]) -> Groups:
    """Return the groups of candidates that are in such an order, except that their corruptions need not ascend."""
    query, side = candidates.query, candidates.side
    is_next = np.ones(len(query), np.bool_)
    is_next[1:] = query[1:] != query[:-1]
    is_next[1:] |= side[1:] != side[:-1]
    first = np.flatnonzero(is_next)
    has_true = (candidates.atom[first] == triples[query[first]]).all(1)
    return Groups(np.append(first, len(query)), query[first], side[first], has_true)


def sort_rows(candidates: Candidates | CandidateSet, triples: NDArray[np.int32]) -> NDArray[np.int64]:
    """Sort the rows by query and side, a true triple in front of its group: int64 [N]."""
    is_corruption = (candidates.atom != triples[candidates.query]).any(1)
    return np.lexsort((is_corruption, group_keys(candidates)))


def drop_repeated(candidates: Candidates | CandidateSet) -> NDArray[np.int64]:
    """Return the first row of each distinct candidate: int64 [m]."""
    keys = np.column_stack((group_keys(candidates), candidates.atom))
    rows: NDArray[np.int64] = np.unique(keys, axis=0, return_index=True)[1]
    return rows


def take_candidates(candidates: Candidates, rows: Any) -> Candidates:
    """Select candidates; `rows` are indices, a mask or a slice."""
    columns: Any = candidates
    return Candidates(*(column[rows] for column in columns))


def _pack(atoms: NDArray[np.int32]) -> NDArray[np.int64]:
    """Pack the arguments of atoms, int32 [n, 3], into numbers of the same order: int64 [n]."""
    packed: NDArray[np.int64] = atoms[:, 1].astype(np.int64) << 32
    packed += atoms[:, 2]
    return packed
