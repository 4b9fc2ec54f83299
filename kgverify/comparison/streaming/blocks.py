"""Blocks of paired candidates of two mapped traces: read, and judged equal or not before anybody looks at a step."""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.numbering import Numbering
from kgverify.comparison.streaming.columns import has_same_bytes
from kgverify.trace.model.columns import Candidates, Columns, Digests
from kgverify.trace.model.trace import Trace
from kgverify.trace.read.data_file import BLOCK_STEPS, StoredDigests
from kgverify.trace.read.trace_file import TraceFile

Range = tuple[int, int]

_NO_DIGESTS: Final = Digests(*(np.zeros(0, np.uint64) for _ in Digests._fields))


class Pairs(NamedTuple):
    """Paired candidates of two traces; None stands for every row, each paired with the same row."""

    expected: NDArray[np.int64] | None
    actual: NDArray[np.int64] | None
    num: int

    def rows(self, begin: int, end: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The rows of some pairs."""
        if self.expected is None or self.actual is None:
            same = np.arange(begin, end)
            return same, same
        return self.expected[begin:end], self.actual[begin:end]


def split_pairs(pairs: Pairs, ranges: Iterable[Range], traces: tuple[TraceFile, TraceFile]) -> Iterator[Range]:
    """The ranges of pairs cut into blocks of about `BLOCK_STEPS` steps on either side, or of a single pair."""
    for first, last in ranges:
        begin = first
        while begin < last:
            end = min(begin + BLOCK_STEPS, last)
            for trace, rows in zip(traces, pairs.rows(begin, end), strict=True):
                counts = trace.gather_column("candidates/num_steps", rows)
                sums = np.cumsum(counts, dtype=np.int64)
                end = min(end, begin + max(1, int(np.searchsorted(sums, BLOCK_STEPS, side="right"))))
            yield begin, end
            begin = end


def read_rows(trace: TraceFile, rows: NDArray[np.int64]) -> Columns:
    """Candidates with all their steps, a view where they are neighbours."""
    if len(rows) and int(rows[-1]) - int(rows[0]) == len(rows) - 1 and bool((np.diff(rows) == 1).all()):
        return trace.read_candidates(int(rows[0]), int(rows[-1]) + 1)
    return trace.gather_candidates(rows)


def load_block(trace: TraceFile, columns: Columns, rows: NDArray[np.int64]) -> Trace:
    """Some candidates as a trace, checked as `read_trace` checks. UserError if their values or digests are wrong."""
    where = f"{trace.source}:candidates {int(rows.min())} to {int(rows.max())}" if len(rows) else trace.source
    digests = trace.check_block(columns, _stored_digests(trace, rows), where)
    return trace.with_columns(columns, digests)


def block_of(trace: TraceFile, columns: Columns) -> Trace:
    """Some columns as a trace, unchecked, with digests that nobody reads."""
    return trace.with_columns(columns, _NO_DIGESTS)


def agrees_at_once(
    expected: Columns, actual: Columns, ignored: frozenset[str], score_tolerance: float
) -> tuple[bool, bool]:
    """Whether every field agrees, as `Comparer` would find; and whether scores then differ in bits all the same."""
    has_other_bits = False
    for level in Columns._fields:
        left, right = getattr(expected, level), getattr(actual, level)
        for name in left._fields:
            field = f"{level}.{name}"
            if field in ignored:
                continue
            x, y = getattr(left, name), getattr(right, name)
            if field == "resolvents.score":
                is_equal, has_other_bits = scores_agree(x, y, score_tolerance)
            elif field == "candidates.log_probability":
                is_equal = sums_agree(x, y, expected.candidates.num_steps, score_tolerance)
            else:
                is_equal = has_same_bytes(x, y) or np.array_equal(x, y)
            if not is_equal:
                return False, False
    return True, has_other_bits


def scores_agree(expected: NDArray[np.floating], actual: NDArray[np.floating], tolerance: float) -> tuple[bool, bool]:
    """Whether scores agree within the tolerance; and whether they differ in bits, in the coarser of the two types."""
    if len(expected) != len(actual):
        return False, False
    if expected.dtype == actual.dtype and bool((expected == actual).all()):
        return True, False
    x, y = expected.astype(np.float64), actual.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        if not bool(((x == y) | (np.abs(x - y) <= tolerance)).all()):
            return False, False
        coarse = min(expected.dtype, actual.dtype, key=lambda each: each.itemsize)
        return True, not np.array_equal(expected.astype(coarse), actual.astype(coarse))


def sums_agree(
    expected: NDArray[np.float64], actual: NDArray[np.float64], num_steps: NDArray[np.uint32], score_tolerance: float
) -> bool:
    """Whether sums of log-probabilities agree, within the tolerance that their steps allow."""
    if bool((expected == actual).all()):
        return True
    size = np.where(np.isfinite(expected), np.abs(expected), 0.0)
    tolerance = 2 * score_tolerance * np.maximum(1, num_steps.astype(np.int64)) + 1e-9 * np.maximum(1.0, size)
    with np.errstate(invalid="ignore", over="ignore"):
        return bool(((expected == actual) | (np.abs(expected - actual) <= tolerance)).all())


def convert_columns(trace: TraceFile, columns: Columns, numbering: Numbering, side: int) -> Columns:
    """Columns of one side in the ids that both are to have."""
    return columns if numbering.converter(side) is None else numbering.convert(side, block_of(trace, columns)).columns


def shell_of(trace: TraceFile, candidates: Candidates | None = None) -> Trace:
    """The trace without its steps: with no candidates, or with these."""
    columns = trace.files[0].read_steps(0, 0)
    if candidates is not None:
        columns = columns._replace(candidates=candidates)
    return trace.with_columns(columns, _NO_DIGESTS, trace.rankings)


def without_steps(trace: TraceFile, rows: NDArray[np.int64]) -> Trace:
    """Some candidates as if they had no steps."""
    columns = [trace.gather_column(f"candidates/{name}", rows) for name in Candidates._fields]
    candidates = Candidates(*columns)
    return shell_of(trace, candidates._replace(num_steps=np.zeros_like(candidates.num_steps)))


def has_same_digests(
    expected: TraceFile, actual: TraceFile, rows: NDArray[np.int64], others: NDArray[np.int64]
) -> bool:
    """Whether no stored digest of two blocks differs; of equal steps one that does is wrong."""
    left, right = _stored_digests(expected, rows), _stored_digests(actual, others)
    return all(has_same_bytes(left[name], right[name]) for name in left.keys() & right.keys())


def _stored_digests(trace: TraceFile, rows: NDArray[np.int64]) -> StoredDigests:
    """The stored digests of all steps of some candidates."""
    # Runs of neighbours are one piece of a file.
    ends = np.flatnonzero(np.diff(rows, append=-2) != 1)
    begins = np.concatenate(([0], ends[:-1] + 1))
    parts: list[StoredDigests] = []
    for begin, end in zip(rows[begins].tolist(), rows[ends].tolist(), strict=True) if len(rows) else ():
        parts.extend(trace.read_digests(begin, end + 1))
    return {name: np.concatenate([part[name] for part in parts]) for name in (parts[0] if parts else ())}
