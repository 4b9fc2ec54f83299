"""The columns of two traces on disk, compared as they are stored and hashed in the same pass."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from kgverify.comparison.equal_columns import has_equal_scores, has_equal_sums, has_same_bytes
from kgverify.comparison.source import FileSource, Range, check_counts
from kgverify.trace.read.data_file import COUNTS, DataFile
from kgverify.trace.read.trace_file import TraceFile

PIECE_BYTES: Final = 1 << 20
"""The bytes of a piece; it fits the caches, so that hashing does not fetch it again."""

_RELEASE_BYTES: Final = 128 << 20

_THREADS: Final = 2
_AHEAD: Final = 8

_IDENTITY: Final = ("candidates/query", "candidates/side", "candidates/atom")
_LEVELS: Final = ("candidates/", "steps/", "resolvents/", "digests/")

Position = tuple[DataFile, int]
"""A file and a row in it."""

Agrees = Callable[[NDArray[Any], NDArray[Any], int], bool]
"""Decides whether the values of two pieces whose bytes differ, or may be NaN, count as equal; takes the first row, too."""


class StoredColumns:
    """The columns of two traces on disk that number their names alike.

    has_digests: whether the stored digests of both can be compared
    verified:    the columns whose checksums were verified
    """

    def __init__(
        self,
        expected: FileSource,
        actual: FileSource,
        *,
        score_tolerance: float,
        has_digests: bool,
        progress: Callable[[int], None],
    ) -> None:
        self._sources = expected, actual
        self._expected, self._actual = expected.trace, actual.trace
        self._score_tolerance = score_tolerance
        self._has_digests = has_digests
        self._progress = progress
        self._bit_ranges: list[Range] = []
        self.verified: set[str] = set()

    def has_same_candidates(self) -> bool:
        """Return whether both traces have the same candidates in the same order."""
        if self._expected.num_candidates != self._actual.num_candidates:
            return False
        return not any(self._find_differing(name) for name in _IDENTITY)

    def has_same_shape(self) -> bool:
        """Return whether all counts are the same, so that a row of any column is of the same element in both."""
        left, right = self._expected, self._actual
        counts = [name for name in COUNTS if all(name in source.stored for source in self._sources)]
        return all(
            left.length(name) == right.length(name) and not self._find_differing(name) for name in counts
        ) and all(left.length(COUNTS[name]) == right.length(COUNTS[name]) for name in counts)

    def find_suspects(self) -> list[Range]:
        """Return the candidates that may differ, given that both traces have the same shape."""
        expected, actual = self._expected, self._actual
        lengths = [[[f.length(n) for n in COUNTS.values()] for f in trace.files] for trace in (expected, actual)]
        # Equal counts have equal sums where both traces are divided into files alike.
        for file in expected.files if lengths[0] == lengths[1] else (*expected.files, *actual.files):
            check_counts(file)
        suspects: list[Range] = []
        names = {*self._sources[0].stored, *self._sources[1].stored} - self.verified
        for name in sorted(name for name in names if name.startswith(_LEVELS)):
            if not all(name in source.stored for source in self._sources):
                for source in self._sources:
                    if name in source.stored and not source.is_verified:
                        source.trace.verify(name)
                continue
            found = self._find_differing(name)
            if self._has_digests or not name.startswith("digests/"):
                suspects += [self._candidates_of(name, each) for each in found]
        return join_ranges(suspects)

    def has_other_bits(self, suspects: list[Range]) -> bool:
        """Return whether scores differ in bits in candidates that agree, those outside the suspects."""
        for first, last in join_ranges(self._bit_ranges):
            for low, high in _subtract(self._candidates_of("resolvents/score", (first, last)), suspects):
                scores = [t.read_candidates(low, high).resolvents.score for t in (self._expected, self._actual)]
                if has_equal_scores(scores[0], scores[1], self._score_tolerance)[1]:
                    return True
        return False

    def _candidates_of(self, name: str, rows: Range) -> Range:
        if name.startswith("digests/"):
            name = "steps/num_atoms"
        first, last = self._expected.candidate_of(name, rows[0]), self._expected.candidate_of(name, rows[1] - 1)
        return first, last + 1

    def _find_differing(self, name: str) -> list[Range]:
        """Return the rows of a column that may differ, and verify its checksums unless all values were verified."""
        self.verified.add(name)
        tolerance = self._score_tolerance

        def agree_as_scores(x: NDArray[np.floating], y: NDArray[np.floating], begin: int) -> bool:
            is_equal, has_other_bits = has_equal_scores(x, y, tolerance)
            if has_other_bits:
                self._bit_ranges.append((begin, begin + len(x)))
            return is_equal

        def agree_as_sums(x: NDArray[np.float64], y: NDArray[np.float64], begin: int) -> bool:
            rows = np.arange(begin, begin + len(x))
            return has_equal_sums(x, y, self._sources[0].gather_column("num_steps", rows), tolerance)

        rules: dict[str, Agrees] = {"resolvents/score": agree_as_scores, "candidates/log_probability": agree_as_sums}
        return find_differing_ranges(
            self._expected,
            self._actual,
            name,
            agrees=rules.get(name),
            verifies=not all(source.is_verified for source in self._sources),
            progress=self._progress,
        )


def find_differing_ranges(
    expected: TraceFile,
    actual: TraceFile,
    name: str,
    *,
    agrees: Agrees | None = None,
    verifies: bool = True,
    progress: Callable[[int], None] = lambda num_bytes: None,
) -> list[Range]:
    """Return the rows in which a column of the same length differs, in whole pieces, with neighbouring pieces joined.

    agrees:   decides where bytes differ; asked about every piece of a column of floats, since NaN equals nothing
    verifies: whether to verify the checksums of both sides in the same pass
    """
    found: list[Range] = []
    left, right = _RunningChecksum(), _RunningChecksum()
    num_passed = 0
    for begin, end, a, b, x, y, is_same in _compare_pieces(expected, actual, name):
        if verifies:
            left.enter(*a, name)
            right.enter(*b, name, twin=left)
            left.update(x, right, y, is_same)
            left.leave(end - begin)
            right.leave(end - begin)
        if (is_same and x.dtype.kind == "f") or not is_same:
            is_same = agrees is not None and agrees(x, y, begin)
        if not is_same:
            found.append((begin, end))
        num_passed += x.nbytes + y.nbytes
        progress(x.nbytes + y.nbytes)
        if num_passed > _RELEASE_BYTES:
            num_passed = 0
            expected.release()
            actual.release()
    if expected.length(name) * expected.files[0].dtype(name).itemsize > _RELEASE_BYTES // 4:
        expected.release()
        actual.release()
    if verifies:
        # The loop sees no piece of an empty column.
        for trace in (expected, actual):
            for file in trace.files:
                if name in file.stored and not file.length(name):
                    file.verify(name)
    return join_ranges(found)


def _compare_pieces(
    expected: TraceFile, actual: TraceFile, name: str
) -> Iterator[tuple[int, int, Position, Position, NDArray[Any], NDArray[Any], bool]]:
    """Yield the pieces of a column in order, with their rows and whether their bytes are the same."""

    def read(begin: int, end: int, a: Position, b: Position) -> tuple[NDArray[Any], NDArray[Any]]:
        return a[0].read(name, a[1], a[1] + end - begin), b[0].read(name, b[1], b[1] + end - begin)

    # A comparison waits for memory most of the time, and one core cannot use all the bandwidth.
    with ThreadPoolExecutor(_THREADS) as pool:
        ahead: deque[Any] = deque()
        for begin, end, a, b in _split_column(expected, actual, name):
            x, y = read(begin, end, a, b)
            ahead.append((begin, end, a, b, x, y, pool.submit(has_same_bytes, x, y)))
            if len(ahead) > _AHEAD:
                *piece, answer = ahead.popleft()
                yield *piece, answer.result()
        for *piece, answer in ahead:
            yield *piece, answer.result()


class _RunningChecksum:
    """The running checksum of a column of one side, file by file."""

    def __init__(self) -> None:
        self.hasher: Any = None
        self._file: DataFile | None = None
        self._name = ""
        self._left = 0

    def enter(self, file: DataFile, begin: int, name: str, twin: "_RunningChecksum | None" = None) -> None:
        """Start a new file if a piece is the first of one."""
        if begin == 0 or file is not self._file:
            self._file, self._name, self._left = file, name, file.length(name)
            # Bytes that are the same on both sides from the first one on are hashed once.
            starts_as_twin = twin is not None and twin._left == (twin._file.length(name) if twin._file else -1)
            self.hasher = twin.hasher if twin is not None and starts_as_twin else xxhash.xxh3_64()

    def update(
        self, piece: NDArray[Any], other: "_RunningChecksum", piece_of_other: NDArray[Any], is_same: bool
    ) -> None:
        """Add a piece of both sides."""
        if other.hasher is self.hasher and not is_same:
            other.hasher = self.hasher.copy()
        self.hasher.update(piece.data)
        if other.hasher is not self.hasher:
            other.hasher.update(piece_of_other.data)

    def leave(self, num_rows: int) -> None:
        """Verify the checksum after the last piece of a file. UserError if it differs."""
        self._left -= num_rows
        if self._left == 0 and self._file is not None and self._name in self._file.stored:
            self._file.check_sum(self._name, self.hasher.intdigest())


def _split_column(expected: TraceFile, actual: TraceFile, name: str) -> Iterator[tuple[int, int, Position, Position]]:
    """Yield ranges of rows that lie in one file on each side, with the files and the first row in each."""
    segments = _segments(expected, name), _segments(actual, name)
    width = max(trace.files[0].dtype(name).itemsize for trace in (expected, actual))
    stored = expected.files[0].stored.get(name)
    rows = max(1, PIECE_BYTES // (width * (stored.shape[1] if stored is not None and stored.shape[1:] else 1)))
    begin, at = 0, [0, 0]
    while at[0] < len(segments[0]) and at[1] < len(segments[1]):
        current = [side[i] for side, i in zip(segments, at, strict=True)]
        end = min(begin + rows, *(stop for _, _, stop in current))
        (left, first, _), (right, other_first, _) = current
        yield begin, end, (left, begin - first), (right, begin - other_first)
        at = [i + (end == stop) for i, (_, _, stop) in zip(at, current, strict=True)]
        begin = end


def _segments(trace: TraceFile, name: str) -> list[tuple[DataFile, int, int]]:
    segments, start = [], 0
    for file in trace.files:
        if length := file.length(name):
            segments.append((file, start, start + length))
            start += length
    return segments


def join_ranges(ranges: list[Range]) -> list[Range]:
    """Return ranges in order, with those that touch or overlap joined."""
    joined: list[Range] = []
    for begin, end in sorted(ranges):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((begin, end))
    return joined


def _subtract(whole: Range, ranges: list[Range]) -> list[Range]:
    """Return the pieces of a range that lie in no other; the others are in order."""
    left, at = [], whole[0]
    for begin, end in ranges:
        if end <= at or begin >= whole[1]:
            continue
        if begin > at:
            left.append((at, begin))
        at = max(at, end)
    if at < whole[1]:
        left.append((at, whole[1]))
    return left
