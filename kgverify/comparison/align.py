"""Which candidate of one trace is which of the other: by what it is, never by position."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.trace.model.columns import Candidates


class Alignment(NamedTuple):
    """Rows of candidates, int64 each: pairs that are the same candidate, and what only one trace has.

    The n-th occurrence of a candidate in one trace is paired with its n-th occurrence in the other.
    """

    expected: NDArray[np.int64]
    actual: NDArray[np.int64]
    missing: NDArray[np.int64]
    extra: NDArray[np.int64]


def align_candidates(expected: Candidates, actual: Candidates) -> Alignment:
    """Pair candidates by (query, side, atom); pairs are in the expected order."""
    if all(np.array_equal(getattr(expected, name), getattr(actual, name)) for name in ("query", "side", "atom")):
        every, none = np.arange(len(expected.query)), np.zeros(0, np.int64)
        return Alignment(every, every, none, none)
    rows = [np.column_stack((c.query, c.side, c.atom)).astype(np.int64) for c in (expected, actual)]
    _, group = np.unique(np.concatenate(rows), axis=0, return_inverse=True)
    group = group.reshape(-1)
    split = len(rows[0])
    keys = [_with_occurrence(part) for part in (group[:split], group[split:])]
    _, in_expected, in_actual = np.intersect1d(keys[0], keys[1], assume_unique=True, return_indices=True)
    order = np.argsort(in_expected)
    return Alignment(
        in_expected[order],
        in_actual[order],
        np.setdiff1d(np.arange(split), in_expected),
        np.setdiff1d(np.arange(len(rows[1])), in_actual),
    )


def _with_occurrence(group: NDArray[np.int64]) -> NDArray[np.int64]:
    """A key for each row that tells the n-th occurrence of its group from the others."""
    order = np.argsort(group, kind="stable")
    ordered = group[order]
    begins = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(ordered) else np.zeros(0, np.int64)
    first = np.repeat(begins, np.diff(np.r_[begins, len(ordered)]))
    occurrence = np.empty(len(group), np.int64)
    occurrence[order] = np.arange(len(group)) - first
    return group * (1 << 31) + occurrence
