"""Traces on disk as a comparison reads them: block by block, or column by column, compared and hashed in one pass."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from kgverify.comparison.equal_columns import Rounded, agree, count_rounded, differ_in, has_same_bytes
from kgverify.trace.model.columns import NO_DIGESTS, Columns, Range, Rankings, are_neighbours
from kgverify.trace.model.digests import Words
from kgverify.trace.model.schema import SEQUENCE, Column, EqualityRule
from kgverify.trace.model.trace import Trace
from kgverify.trace.model.validate import check_codes
from kgverify.trace.read.data_file import DataFile
from kgverify.trace.read.trace_file import TraceFile

PIECE_BYTES: Final = 1 << 20
"""The bytes of a piece. It fits into the caches, so that hashing does not load it again."""

_GAP: Final = 16
"""The maximum number of equal rows between two differing rows of the same range."""

_THREADS: Final = 2
_AHEAD: Final = 8

Position = tuple[DataFile, int]
"""A file and a row in it."""


class FileSource:
    """A trace that stays on disk, read block by block.

    header, fields, schema: as in `Trace`
    members:        the traces of processes, as in `TraceFile`
    faults:         descriptions of shards that are missing or doubled
    is_verified:    whether every value and digest was verified
    block_steps:    the steps to read at a time
    """

    def __init__(self, opened: TraceFile | Path | str) -> None:
        self.trace = trace = opened if isinstance(opened, TraceFile) else TraceFile(opened, tolerates_shards=True)
        self.header, self.fields, self.schema, self.faults = trace.header, trace.fields, trace.schema, trace.faults
        self.num_candidates, self.num_steps = trace.num_candidates, trace.num_steps
        self.is_verified, self.block_steps, self.members = False, DataFile.block_steps, trace.members

    @property
    def rankings(self) -> Rankings | None:
        """The rankings; None if there are no rankings."""
        return self.trace.rankings

    @property
    def labels(self) -> NDArray[Any] | None:
        """The labels of true triples, [N], 0 for other candidates; None if the trace has none."""
        return self.trace.read_labels()

    @property
    def stored(self) -> frozenset[str]:
        """The paths of the columns that the files hold."""
        return frozenset(self.trace.files[0].stored)

    def shell(self, *, has_candidates: bool = False) -> Trace:
        """Return the trace without its steps, and without its candidates unless they are wanted."""
        columns = self.trace.files[0].read_steps(0, 0)
        if has_candidates:
            columns = columns._replace(candidates=self.trace.candidate_columns())
            # A report cannot name an invalid side; the other codes are checked with the values.
            for name in self.schema.identity:
                path = f"candidates/{name}"
                check_codes(path, self.schema.values(columns, path), self.trace.source, self.schema)
        return self.trace.with_columns(columns, NO_DIGESTS, self.trace.rankings)

    def split(self) -> Iterator[Range]:
        """Yield ranges of candidates, each in one file."""
        return self.trace.split()

    def gather_column(self, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return rows of a column of the candidates, in any order."""
        return self.trace.gather_column(f"candidates/{name}", rows)

    def read_column(self, name: str) -> NDArray[Any]:
        """Return a whole column of the candidates."""
        return np.concatenate([file.read_all(f"candidates/{name}") for file in self.trace.files])

    def read_rows(self, rows: NDArray[np.int64]) -> Columns:
        """Return candidates with all their steps, as a view if their rows are consecutive."""
        if are_neighbours(rows):
            return self.trace.read_candidates(int(rows[0]), int(rows[-1]) + 1)
        return self.trace.gather_candidates(rows)

    def load(self, columns: Columns, rows: NDArray[np.int64]) -> Trace:
        """Return some candidates as a trace, with the checks of `read_trace`. UserError if a value or digest is wrong."""
        where = self.trace.source
        if len(rows):
            where += f":candidates {int(rows.min())} to {int(rows.max())}"
        return self.trace.with_columns(columns, self.trace.check_block(columns, self.stored_digests(rows), where))

    def stored_digests(self, rows: NDArray[np.int64]) -> Words | None:
        """Return the sequence digests of all steps of some candidates; None if the files hold none."""
        # Consecutive rows are read as one piece of a file.
        ends = np.flatnonzero(np.diff(rows, append=-2) != 1)
        begins = np.concatenate(([0], ends[:-1] + 1))
        pieces: list[Words] = []
        for begin, end in zip(rows[begins].tolist(), rows[ends].tolist(), strict=True) if len(rows) else ():
            pieces.extend(self.trace.read_digests(begin, end + 1))
        return np.concatenate(pieces) if pieces else None

    def verify(self, *, content: bool) -> None:
        """Verify every value, or only the structure and the data that are read at once. UserError if the trace is damaged."""
        self.is_verified = content
        if content:
            self.trace.verify_content()
        else:
            self.trace.verify("header", "symbols/", "program/", "stages/", "rankings/", "shard/")

    def verify_rest(self, done: set[str]) -> None:
        """Verify the checksums of all columns that are not verified yet, and the sums of their counts."""
        if self.is_verified:
            return
        for file in self.trace.files:
            for each in (SEQUENCE, *(each.path for each in self.schema.compared)):
                if each in file.stored and each not in done:
                    file.verify(each)
            file.check_counts()


class StoredColumns:
    """The columns of two traces on disk that use the same numbering of names.

    has_digests: whether the stored digests of both can be compared
    progress:    receives the number of bytes compared since the last call
    piece_bytes: the bytes compared at a time
    verified:    the columns whose checksums were verified
    """

    def __init__(
        self,
        sources: Sequence[FileSource],
        *,
        score_tolerance: float,
        has_digests: bool,
        progress: Callable[[int], None],
        piece_bytes: int | None = None,
    ) -> None:
        self._piece_bytes = piece_bytes or PIECE_BYTES
        self._sources, self._schema = sources, sources[0].schema
        self._expected, self._actual = (source.trace for source in sources)
        self._score_tolerance = score_tolerance
        self._has_digests = has_digests
        self._progress = progress
        self._bit_ranges: list[Range] = []
        self.verified: set[str] = set()

    def has_same_candidates(self) -> bool:
        """Return whether both traces have the same candidates in the same order."""
        if self._expected.num_candidates != self._actual.num_candidates:
            return False
        return not any(self._find_differing(f"candidates/{name}") for name in self._schema.identity)

    def has_same_shape(self) -> bool:
        """Return whether all counts are equal, so that a row of any column belongs to the same element in both."""
        left, right = self._expected, self._actual
        counts = [each for each in self._counts if all(each.path in source.stored for source in self._sources)]
        return all(
            left.length(each.path) == right.length(each.path) and not self._find_differing(each.path) for each in counts
        ) and all(left.num_rows(each.counts) == right.num_rows(each.counts) for each in counts)

    @property
    def _counts(self) -> list[Column]:
        return [each for each in self._schema.counts if each in self._schema.compared]

    def find_suspects(self) -> list[Range]:
        """Return the candidates that may differ, given that both traces have the same shape."""
        expected, actual = self._expected, self._actual
        lengths = [
            [[file.num_rows(each.counts) for each in self._counts] for file in trace.files]
            for trace in (expected, actual)
        ]
        # If both traces are divided into files in the same way, equal counts have equal sums.
        for file in expected.files if lengths[0] == lengths[1] else (*expected.files, *actual.files):
            file.check_counts()
        suspects: list[Range] = []
        names = {SEQUENCE, *(each.path for each in self._schema.compared)} - self.verified
        for name in sorted(names & (self._sources[0].stored | self._sources[1].stored)):
            if not all(name in source.stored for source in self._sources):
                for source in self._sources:
                    if name in source.stored and not source.is_verified:
                        source.trace.verify(name)
                continue
            found = self._find_differing(name)
            if self._has_digests or name != SEQUENCE:
                suspects += [self._candidates_of(name, each) for each in found]
        return join_ranges(suspects)

    def count_rounded(self, suspects: list[Range]) -> Rounded:
        """Count the scores that differ in bits in the candidates that agree, i.e. outside the suspects."""
        found = Rounded()
        for first, last in join_ranges(self._bit_ranges):
            whole = self._candidates_of("resolvents/score", (first, last))
            # The suspects are sorted and disjoint, so their clipped ends are also the ends of the ranges between them.
            ends = [whole[0], *np.clip(np.array(suspects, np.int64), *whole).ravel().tolist(), whole[1]]
            for low, high in zip(ends[::2], ends[1::2], strict=True):
                scores = [t.read_candidates(low, high).resolvents.score for t in (self._expected, self._actual)]
                found = found.plus(count_rounded(scores[0], scores[1]))
        return found

    def _candidates_of(self, name: str, rows: Range) -> Range:
        first, last = self._expected.candidate_of(name, rows[0]), self._expected.candidate_of(name, rows[1] - 1)
        return first, last + 1

    def _find_differing(self, name: str) -> list[Range]:
        """Return the rows of a column that may differ; also verify its checksums unless all values were verified."""
        self.verified.add(name)
        column = self._schema.column_of[name]
        expected, actual = self._expected, self._actual
        checksums = None if all(source.is_verified for source in self._sources) else _PairedChecksums(name)
        found: list[Range] = []
        num_steps = np.zeros(0, np.uint32)
        for begin, a, b, x, y, is_same in _compare_pieces(expected, actual, name, self._piece_bytes):
            rows = begin, begin + len(x)
            if checksums is not None:
                checksums.add(a, b, x, y, is_same)
                for (file, row), values in ((a, x),) if is_same else ((a, x), (b, y)):
                    check_codes(name, values, f"{file.path}, from row {row} on", self._schema)
            # NaN is not equal to anything, not even to the same bytes.
            if not is_same or x.dtype.kind == "f":
                if column.rule is EqualityRule.SUM:
                    num_steps = self._sources[0].gather_column("num_steps", np.arange(*rows))
                is_same, is_rounded = agree(column, x, y, self._score_tolerance, num_steps)
                if is_rounded or (not is_same and column.rule is EqualityRule.SCORE):
                    self._bit_ranges.append(rows)
            if not is_same:
                found += _list_ranges(begin + np.flatnonzero(differ_in(column, self._score_tolerance, x, y)))
            self._progress(x.nbytes + y.nbytes)
        # The loop has no pieces of an empty column.
        for file in (*expected.files, *actual.files) if checksums is not None else ():
            if name in file.stored and not file.length(name):
                file.verify(name)
        return join_ranges(found)


def _compare_pieces(
    expected: TraceFile, actual: TraceFile, name: str, piece_bytes: int
) -> Iterator[tuple[int, Position, Position, NDArray[Any], NDArray[Any], bool]]:
    """Yield the pieces of a column in order: the first row, both positions, both arrays, and whether the bytes are equal."""
    pieces = list(_split_column(expected, actual, name, piece_bytes))
    if len(pieces) == 1:
        # Starting threads would take longer.
        begin, end, a, b = pieces[0]
        x, y = (file.read(name, at, at + end - begin) for file, at in (a, b))
        yield begin, a, b, x, y, has_same_bytes(x, y)
        return
    # A comparison mostly waits for memory, and one core cannot use the whole bandwidth.
    with ThreadPoolExecutor(_THREADS) as pool:
        ahead: deque[Any] = deque()
        for begin, end, a, b in pieces:
            x, y = (file.read(name, at, at + end - begin) for file, at in (a, b))
            ahead.append((begin, a, b, x, y, pool.submit(has_same_bytes, x, y)))
            if len(ahead) > _AHEAD:
                *piece, answer = ahead.popleft()
                yield *piece, answer.result()
        for *piece, answer in ahead:
            yield *piece, answer.result()


def _split_column(
    expected: TraceFile, actual: TraceFile, name: str, piece_bytes: int
) -> Iterator[tuple[int, int, Position, Position]]:
    """Yield ranges of rows that lie within one file on each side, with the files and the first row in each."""
    traces = expected, actual
    starts = [np.cumsum([0, *(file.length(name) for file in trace.files)]) for trace in traces]
    width = max(trace.files[0].dtype(name).itemsize for trace in traces)
    stored = expected.files[0].stored.get(name)
    rows = max(1, piece_bytes // (width * (stored.shape[1] if stored is not None and stored.shape[1:] else 1)))
    cuts = np.unique(np.concatenate([*starts, np.arange(0, starts[0][-1], rows)]))
    for begin, end in pairwise(cuts.tolist()):
        at = [int(np.searchsorted(own, begin, side="right")) - 1 for own in starts]
        left, right = ((trace.files[i], begin - int(own[i])) for trace, own, i in zip(traces, starts, at, strict=True))
        yield begin, end, left, right


class _PairedChecksums:
    """The running checksums of a column on both sides, file by file.

    While the bytes of both sides are the same from the beginning, they are hashed only once.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._left: Any = None
        self._right: Any = None

    def add(self, a: Position, b: Position, x: NDArray[Any], y: NDArray[Any], is_same: bool) -> None:
        """Add a piece from each side. UserError if it is the last piece of a file and the checksum differs."""
        if not a[1]:
            self._left = xxhash.xxh3_64()
        if not b[1]:
            is_twin = not a[1] and a[0].length(self._name) == b[0].length(self._name)
            self._right = self._left if is_twin else xxhash.xxh3_64()
        if self._right is self._left and not is_same:
            self._right = self._left.copy()
        self._left.update(x.data)
        if self._right is not self._left:
            self._right.update(y.data)
        for (file, begin), hasher in ((a, self._left), (b, self._right)):
            if begin + len(x) == file.length(self._name) and self._name in file.stored:
                file.stored[self._name].check_checksum(hasher.intdigest())


def _list_ranges(rows: NDArray[np.int64]) -> Iterator[Range]:
    """Yield ranges that hold the given ascending rows, with gaps that take less time to compare than a further range."""
    groups = np.split(rows, np.flatnonzero(np.diff(rows) > _GAP) + 1)
    return ((int(group[0]), int(group[-1]) + 1) for group in groups)


def join_ranges(ranges: list[Range]) -> list[Range]:
    """Return ranges in order; join ranges that touch or overlap."""
    joined: list[Range] = []
    for begin, end in sorted(ranges):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((begin, end))
    return joined
