"""Comparing columns as they lie on disk, some rows at a time, and hashing them in the same pass."""

import ctypes
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import xxhash
from numpy.typing import NDArray

from kgverify.trace.read.data_file import DataFile
from kgverify.trace.read.trace_file import TraceFile

PIECE_BYTES: Final = 1 << 20
"""Fits the caches, so that hashing does not fetch the bytes again."""

_RELEASE_BYTES: Final = 128 << 20

_THREADS: Final = 2
_AHEAD: Final = 8

Range = tuple[int, int]
Agrees = Callable[[NDArray[Any], NDArray[Any], int], bool]
"""Whether the values of two pieces whose bytes differ, or may be NaN, are to be taken for equal; with the first row."""


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
    """Whether two arrays hold the same bytes; several times faster than `numpy.array_equal`, which builds a mask."""
    if expected.dtype != actual.dtype or expected.shape != actual.shape:
        return False
    if _MEMCMP is None or not (expected.flags.c_contiguous and actual.flags.c_contiguous):
        return expected.tobytes() == actual.tobytes()
    return not expected.size or _MEMCMP(expected.ctypes.data, actual.ctypes.data, expected.nbytes) == 0


def differing_ranges(
    expected: TraceFile,
    actual: TraceFile,
    name: str,
    *,
    agrees: Agrees | None = None,
    verifies: bool = True,
    progress: Callable[[int], None] = lambda num_bytes: None,
) -> list[Range]:
    """Rows of a column of the same length in which two traces differ, at the grain of a piece; neighbours joined.

    agrees:   what counts as equal where bytes differ; asked of every piece of a column of floats, since NaN equals nothing
    verifies: verify the checksums of both sides on the way
    """
    found: list[Range] = []
    left, right = _Checks(verifies), _Checks(verifies)
    num_passed = 0
    for begin, end, a, b, x, y, is_same in _compared_pieces(expected, actual, name):
        if verifies:
            left.enter(*a, name)
            right.enter(*b, name, twin=left)
            left.pass_over(x, right, y, is_same)
            left.leave(end - begin)
            right.leave(end - begin)
        if (is_same and x.dtype.kind == "f") or not is_same:
            is_same = agrees is not None and agrees(x, y, begin)
        if not is_same:
            if found and found[-1][1] == begin:
                found[-1] = found[-1][0], end
            else:
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
        # What is empty was not passed over.
        for trace in (expected, actual):
            for file in trace.files:
                if name in file.stored and not file.length(name):
                    file.verify(name)
    return found


def _compared_pieces(
    expected: TraceFile, actual: TraceFile, name: str
) -> Iterator[tuple[int, int, "Place", "Place", NDArray[Any], NDArray[Any], bool]]:
    """The pieces of a column with their rows and whether their bytes are the same, in order; compared some ahead."""

    def read(begin: int, end: int, a: Place, b: Place) -> tuple[NDArray[Any], NDArray[Any]]:
        return a[0].read(name, a[1], a[1] + end - begin), b[0].read(name, b[1], b[1] + end - begin)

    # To compare is to wait for memory, and one core cannot wait for all of it.
    with ThreadPoolExecutor(_THREADS) as pool:
        ahead: deque[Any] = deque()
        for begin, end, a, b in column_pieces(expected, actual, name):
            x, y = read(begin, end, a, b)
            ahead.append((begin, end, a, b, x, y, pool.submit(has_same_bytes, x, y)))
            if len(ahead) > _AHEAD:
                *piece, answer = ahead.popleft()
                yield *piece, answer.result()
        for *piece, answer in ahead:
            yield *piece, answer.result()


class _Checks:
    """The running checksum of a column of one side, file by file."""

    def __init__(self, verifies: bool) -> None:
        self.hasher: Any = None
        self._file: DataFile | None = None
        self._name = ""
        self._left = 0

    def enter(self, file: DataFile, begin: int, name: str, twin: "_Checks | None" = None) -> None:
        """Begin a new file where a piece is the first of one."""
        if begin == 0 or file is not self._file:
            self._file, self._name, self._left = file, name, file.length(name)
            # Bytes that are the same on both sides from the beginning on are hashed once.
            starts_as_twin = twin is not None and twin._left == (twin._file.length(name) if twin._file else -1)
            self.hasher = twin.hasher if twin is not None and starts_as_twin else xxhash.xxh3_64()

    def pass_over(self, piece: NDArray[Any], other: "_Checks", piece_of_other: NDArray[Any], is_same: bool) -> None:
        """Take a piece of both sides in."""
        if other.hasher is self.hasher and not is_same:
            other.hasher = self.hasher.copy()
        self.hasher.update(piece.data)
        if other.hasher is not self.hasher:
            other.hasher.update(piece_of_other.data)

    def leave(self, num_rows: int) -> None:
        """Verify the checksum after the last piece of a file. UserError if it is another."""
        self._left -= num_rows
        if self._left == 0 and self._file is not None and self._name in self._file.stored:
            self._file.check_sum(self._name, self.hasher.intdigest())


Place = tuple[DataFile, int]


def column_pieces(expected: TraceFile, actual: TraceFile, name: str) -> Iterator[tuple[int, int, Place, Place]]:
    """Ranges of rows that lie in one file on each side, with the files and the first row in them."""
    places = [_segments(expected, name), _segments(actual, name)]
    width = max(trace.files[0].dtype(name).itemsize for trace in (expected, actual))
    stored = expected.files[0].stored.get(name)
    rows = max(1, PIECE_BYTES // (width * (stored.shape[1] if stored is not None and stored.shape[1:] else 1)))
    begin, at = 0, [0, 0]
    while at[0] < len(places[0]) and at[1] < len(places[1]):
        segments = [side[i] for side, i in zip(places, at, strict=True)]
        end = min(begin + rows, *(stop for _, _, stop in segments))
        (left, first, _), (right, other_first, _) = segments
        yield begin, end, (left, begin - first), (right, begin - other_first)
        at = [i + (end == stop) for i, (_, _, stop) in zip(at, segments, strict=True)]
        begin = end


def _segments(trace: TraceFile, name: str) -> list[tuple[DataFile, int, int]]:
    segments, start = [], 0
    for file in trace.files:
        if length := file.length(name):
            segments.append((file, start, start + length))
            start += length
    return segments
