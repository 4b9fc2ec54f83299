"""Equality of whole columns: equal blocks are recognized without looking at a single step."""

import ctypes
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from kgverify.comparison.source import FileSource, Range, check_counts
from kgverify.trace.model.columns import COUNTS, Columns
from kgverify.trace.model.validate import check_codes
from kgverify.trace.read.data_file import DataFile
from kgverify.trace.read.trace_file import TraceFile


def _find_memcmp() -> Any:
    try:
        memcmp = ctypes.CDLL(None).memcmp
    except (OSError, AttributeError, TypeError):
        return None
    memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    memcmp.restype = ctypes.c_int
    return memcmp


_MEMCMP: Final = _find_memcmp()


def has_same_bytes(expected: NDArray[Any], actual: NDArray[Any]) -> bool:
    """Return whether two arrays hold the same bytes.

    This is several times faster than `numpy.array_equal`, which builds a mask.
    """
    if expected.dtype != actual.dtype or expected.shape != actual.shape:
        return False
    if _MEMCMP is None or not (expected.flags.c_contiguous and actual.flags.c_contiguous):
        return expected.tobytes() == actual.tobytes()
    return not expected.size or _MEMCMP(expected.ctypes.data, actual.ctypes.data, expected.nbytes) == 0


def has_equal_columns(
    expected: Columns, actual: Columns, ignored: frozenset[str], score_tolerance: float
) -> tuple[bool, bool]:
    """Return whether every field agrees, and whether scores that agree differ in bits. Outputs of stages are not compared."""
    has_other_bits = False
    for level in Columns._fields[:-1]:
        left, right = getattr(expected, level), getattr(actual, level)
        for name in left._fields:
            field = f"{level}.{name}"
            if field in ignored:
                continue
            x, y = getattr(left, name), getattr(right, name)
            if field == "resolvents.score":
                is_equal, has_other_bits = has_equal_scores(x, y, score_tolerance)
            elif field == "candidates.log_probability":
                is_equal = has_equal_sums(x, y, expected.candidates.num_steps, score_tolerance)
            else:
                is_equal = has_same_bytes(x, y) or np.array_equal(x, y)
            if not is_equal:
                return False, False
    return True, has_other_bits


def has_equal_scores(
    expected: NDArray[np.floating], actual: NDArray[np.floating], tolerance: float
) -> tuple[bool, bool]:
    """Return whether scores agree within the tolerance, and whether they then differ in bits.

    Bits are compared in the coarser of the two types.
    """
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


class Rounded(NamedTuple):
    """Scores that agree: how many there are, how many differ in bits, and the largest difference in nats."""

    num_scores: int = 0
    num_differing: int = 0
    largest: float = 0.0

    def plus(self, other: "Rounded") -> "Rounded":
        """Return both counts together."""
        num_scores, num_differing = self.num_scores + other.num_scores, self.num_differing + other.num_differing
        return Rounded(num_scores, num_differing, max(self.largest, other.largest))


def count_rounded(expected: NDArray[np.floating], actual: NDArray[np.floating]) -> Rounded:
    """Count the pairs of scores that differ in the bits of the coarser of the two types."""
    coarse = min(expected.dtype, actual.dtype, key=lambda each: each.itemsize)
    with np.errstate(invalid="ignore", over="ignore"):
        differs = expected.astype(coarse) != actual.astype(coarse)
        apart = np.abs(expected[differs].astype(np.float64) - actual[differs].astype(np.float64))
    return Rounded(len(expected), int(differs.sum()), float(apart.max(initial=0.0)))


def has_equal_sums(
    expected: NDArray[np.float64], actual: NDArray[np.float64], num_steps: NDArray[np.uint32], score_tolerance: float
) -> bool:
    """Return whether sums of log-probabilities agree within the tolerance that their steps allow."""
    if bool((expected == actual).all()):
        return True
    size = np.where(np.isfinite(expected), np.abs(expected), 0.0)
    tolerance = 2 * score_tolerance * np.maximum(1, num_steps.astype(np.int64)) + 1e-9 * np.maximum(1.0, size)
    with np.errstate(invalid="ignore", over="ignore"):
        return bool(((expected == actual) | (np.abs(expected - actual) <= tolerance)).all())


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

    has_digests:  whether the stored digests of both can be compared
    piece_bytes:  the bytes compared at a time; None for `PIECE_BYTES`
    verified:     the columns whose checksums were verified
    found:        the rows of each column that may differ
    """

    def __init__(
        self,
        expected: FileSource,
        actual: FileSource,
        *,
        score_tolerance: float,
        has_digests: bool,
        progress: Callable[[int], None],
        piece_bytes: int | None = None,
    ) -> None:
        self._piece_bytes = piece_bytes or PIECE_BYTES
        self.found: dict[str, list[Range]] = {}
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

    def count_rounded(self, suspects: list[Range]) -> Rounded:
        """Count the scores that differ in bits in candidates that agree, those outside the suspects."""
        found = Rounded()
        for first, last in join_ranges(self._bit_ranges):
            whole = self._candidates_of("resolvents/score", (first, last))
            # The suspects are in order and apart, so that their ends, clipped, alternate with those of the others.
            ends = [whole[0], *np.clip(np.array(suspects, np.int64), *whole).ravel().tolist(), whole[1]]
            for low, high in zip(ends[::2], ends[1::2], strict=True):
                scores = [t.read_candidates(low, high).resolvents.score for t in (self._expected, self._actual)]
                found = found.plus(count_rounded(scores[0], scores[1]))
        return found

    def _candidates_of(self, name: str, rows: Range) -> Range:
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
        agrees = rules.get(name)
        expected, actual = self._expected, self._actual
        checksums = None if all(source.is_verified for source in self._sources) else _PairedChecksums(name)
        found: list[Range] = []
        num_passed = 0
        for begin, a, b, x, y, is_same in _compare_pieces(expected, actual, name, self._piece_bytes):
            if checksums is not None:
                checksums.add(a, b, x, y, is_same)
                for (file, row), values in ((a, x),) if is_same else ((a, x), (b, y)):
                    check_codes(name, values, f"{file.path}, from row {row} on")
            # NaN equals nothing, not even the same bytes.
            if not is_same or x.dtype.kind == "f":
                is_same = agrees is not None and agrees(x, y, begin)
            if not is_same:
                found.append((begin, begin + len(x)))
            num_passed += x.nbytes + y.nbytes
            self._progress(x.nbytes + y.nbytes)
            if num_passed > _RELEASE_BYTES:
                num_passed = 0
                expected.release()
                actual.release()
        if expected.length(name) * expected.files[0].dtype(name).itemsize > _RELEASE_BYTES // 4:
            expected.release()
            actual.release()
        # The loop sees no piece of an empty column.
        for file in (*expected.files, *actual.files) if checksums is not None else ():
            if name in file.stored and not file.length(name):
                file.verify(name)
        self.found[name] = join_ranges(found)
        return self.found[name]


def _compare_pieces(
    expected: TraceFile, actual: TraceFile, name: str, piece_bytes: int
) -> Iterator[tuple[int, Position, Position, NDArray[Any], NDArray[Any], bool]]:
    """Yield the pieces of a column in order: the first row, both positions, both values, and whether the bytes are the same."""
    pieces = list(_split_column(expected, actual, name, piece_bytes))
    if len(pieces) == 1:
        # Threads take longer to start.
        begin, end, a, b = pieces[0]
        x, y = (file.read(name, at, at + end - begin) for file, at in (a, b))
        yield begin, a, b, x, y, has_same_bytes(x, y)
        return
    # A comparison waits for memory most of the time, and one core cannot use all the bandwidth.
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
    """Yield ranges of rows that lie in one file on each side, with the files and the first row in each."""
    sides = [
        (trace.files, np.cumsum([0, *(file.length(name) for file in trace.files)])) for trace in (expected, actual)
    ]
    width = max(trace.files[0].dtype(name).itemsize for trace in (expected, actual))
    stored = expected.files[0].stored.get(name)
    rows = max(1, piece_bytes // (width * (stored.shape[1] if stored is not None and stored.shape[1:] else 1)))
    cuts = np.unique(np.concatenate([*(starts for _, starts in sides), np.arange(0, sides[0][1][-1], rows)]))
    pieces = list(pairwise(cuts.tolist()))
    for begin, end in pieces:
        at = [int(np.searchsorted(starts, begin, side="right")) - 1 for _, starts in sides]
        left, right = ((files[i], begin - int(starts[i])) for i, (files, starts) in zip(at, sides, strict=True))
        yield begin, end, left, right


class _PairedChecksums:
    """The running checksums of a column of both sides, file by file.

    Bytes that are the same from the first one on are hashed once.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._left: Any = None
        self._right: Any = None

    def add(self, a: Position, b: Position, x: NDArray[Any], y: NDArray[Any], is_same: bool) -> None:
        """Add a piece of both sides. UserError if it is the last of a file whose checksum differs."""
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


def join_ranges(ranges: list[Range]) -> list[Range]:
    """Return ranges in order, with those that touch or overlap joined."""
    joined: list[Range] = []
    for begin, end in sorted(ranges):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((begin, end))
    return joined
