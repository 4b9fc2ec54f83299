"""Which candidate of one mapped trace is which of the other, without loading the candidates."""

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.align import Alignment, align_candidates
from kgverify.comparison.numbering import Convert
from kgverify.trace.model.columns import Candidates, CandidateSet
from kgverify.trace.model.digests import Words, candidate_keys, fold, words_of
from kgverify.trace.read.trace_file import TraceFile

ROWS: Final = 1 << 16
IDENTITY: Final = ("candidates/query", "candidates/side", "candidates/atom")


class Side(NamedTuple):
    """A trace whose candidates are to be aligned, with the ids that both are to have."""

    trace: TraceFile
    convert: Convert | None = None

    def take(self, rows: NDArray[np.int64]) -> CandidateSet:
        """What some candidates are."""
        query, side, atom = (self.trace.gather_column(name, rows) for name in IDENTITY)
        return CandidateSet(query, side, self.convert(atom) if self.convert is not None else atom)

    def blocks(self) -> Iterator[tuple[int, int, Candidates]]:
        """All candidates, some rows at a time, with the first row and the one after the last."""
        for begin in range(0, self.trace.num_candidates, ROWS):
            end = min(begin + ROWS, self.trace.num_candidates)
            columns = self.trace.candidate_columns(begin, end)
            if self.convert is not None:
                columns = columns._replace(atom=self.convert(columns.atom))
            yield begin, end, columns


def align_sides(expected: Side, actual: Side) -> Alignment:
    """As `align_candidates`: the n-th occurrence of a candidate with the n-th of the other trace, in the expected order.

    Candidates are found by sorted 64-bit keys and confirmed by what they are; some 60 bytes a candidate in memory.
    """
    keys = _keys(expected), _keys(actual)
    orders = [np.argsort(each, kind="stable") for each in keys]
    ordered = [each[order] for each, order in zip(keys, orders, strict=True)]
    occurrence = np.arange(len(ordered[0])) - np.searchsorted(ordered[0], ordered[0], side="left")
    place = np.searchsorted(ordered[1], ordered[0], side="left") + occurrence
    is_paired = place < len(ordered[1])
    is_paired[is_paired] = ordered[1][place[is_paired]] == ordered[0][is_paired]
    rows = orders[0][is_paired], orders[1][place[is_paired]]
    is_sure = (
        _is_confirmed(expected, actual, *rows)
        and _has_no_collision(expected, orders[0], ordered[0])
        and _has_no_collision(actual, orders[1], ordered[1])
    )
    if not is_sure:
        # Two candidates with one key: not by chance.
        return align_candidates(*(_load(side) for side in (expected, actual)))
    in_order = np.argsort(rows[0])
    return Alignment(
        rows[0][in_order],
        rows[1][in_order],
        np.setdiff1d(np.arange(len(keys[0])), rows[0]),
        np.setdiff1d(np.arange(len(keys[1])), rows[1]),
    )


def rows_to_judge(expected: Side, actual: Side, alignment: Alignment) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The unpaired candidates of both traces, and the pairs by which they are judged.

    Those are the pairs of the same candidate as one that is missing, and of the same atom as one that is extra.
    """
    missing, extra = expected.take(alignment.missing), actual.take(alignment.extra)
    identities, atoms = candidate_keys_of(missing), _atom_keys(extra.atom)
    is_judge = np.zeros(expected.trace.num_candidates, bool)
    for begin, end, columns in expected.blocks():
        is_judge[begin:end] = np.isin(candidate_keys(columns), identities) | np.isin(_atom_keys(columns.atom), atoms)
    pairs = np.flatnonzero(is_judge[alignment.expected])
    return (
        np.sort(np.concatenate((alignment.missing, alignment.expected[pairs]))),
        np.sort(np.concatenate((alignment.extra, alignment.actual[pairs]))),
    )


def candidate_keys_of(candidates: CandidateSet) -> Words:
    """uint64 [N]: as `candidate_keys`."""
    key = np.zeros(len(candidates.query), np.uint64)
    for values in (candidates.query, candidates.side, *candidates.atom.T):
        key = fold(key, words_of(values))
    return key


def _keys(side: Side) -> Words:
    keys = np.empty(side.trace.num_candidates, np.uint64)
    for begin, end, columns in side.blocks():
        keys[begin:end] = candidate_keys(columns)
    return keys


def _atom_keys(atoms: NDArray[np.int32]) -> Words:
    key = np.zeros(len(atoms), np.uint64)
    for values in atoms.T:
        key = fold(key, words_of(values))
    return key


def _is_confirmed(expected: Side, actual: Side, rows: NDArray[np.int64], others: NDArray[np.int64]) -> bool:
    for begin in range(0, len(rows), ROWS):
        part = slice(begin, begin + ROWS)
        left, right = expected.take(rows[part]), actual.take(others[part])
        if not all(np.array_equal(left[i], right[i]) for i in range(len(left))):
            return False
    return True


def _has_no_collision(side: Side, order: NDArray[np.int64], ordered: Words) -> bool:
    again = np.flatnonzero(ordered[1:] == ordered[:-1])
    return _is_confirmed(side, side, order[again], order[again + 1])


def _load(side: Side) -> Candidates:
    candidates = side.trace.candidate_columns()
    return candidates._replace(atom=side.convert(candidates.atom)) if side.convert is not None else candidates
