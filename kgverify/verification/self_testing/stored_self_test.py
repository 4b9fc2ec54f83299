"""The self-test of the comparison of traces on disk: the same files with a few values changed, compared around them."""

from collections import Counter
from collections.abc import Mapping
from copy import copy
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.compare import Comparer
from kgverify.comparison.result import DIGEST
from kgverify.comparison.source import FileSource
from kgverify.comparison.stored_columns import PIECE_BYTES, RowsOf, StoredColumns
from kgverify.errors import InternalError
from kgverify.trace.model.columns import COUNTS
from kgverify.trace.read.data_file import DataFile
from kgverify.trace.read.trace_file import TraceFile

_IDENTITY: Final = ("candidates/query", "candidates/side", "candidates/atom")
_LEVELS: Final = ("candidates/", "steps/", "resolvents/", "digests/")

Values = Mapping[int, Any]
"""The changed rows of a column and their values; a value of a column of atoms is a row."""


def require(condition: bool, what: str) -> None:
    """InternalError unless a condition of the self-test holds."""
    if not condition:
        raise InternalError(f"the comparison failed its self-test, so there is no verdict: {what}")


class _ChangedFile(DataFile):
    """A file of a trace in which some values are others."""

    def __init__(self, file: DataFile, changes: Mapping[str, Values]) -> None:
        # The structure was checked when the file was opened.
        self.__dict__.update(file.__dict__)
        self._changes = changes

    def read(self, name: str, begin: int, end: int) -> NDArray[Any]:
        """Return rows of a dataset, those changed included."""
        changed = {row - begin: value for row, value in self._changes.get(name, {}).items() if begin <= row < end}
        return _overlay(super().read(name, begin, end), changed)

    def take(self, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return rows of a dataset in any order, those changed included."""
        values = self._changes.get(name, {})
        found = {i: values[row] for i, row in enumerate(rows.tolist()) if row in values} if values else {}
        return _overlay(super().take(name, rows), found)


def _overlay(values: NDArray[Any], changed: Values) -> NDArray[Any]:
    if changed:
        values = values.copy()
        for row, value in changed.items():
            values[row] = value
    return values


class _Stored:
    """Both traces on disk, and copies of the actual one in which values are changed."""

    def __init__(self, comparer: Comparer, expected: FileSource, actual: FileSource) -> None:
        self.comparer = comparer
        self.expected, self.actual = _verified(expected, expected.trace), actual
        self.tolerance = comparer.score_tolerance

    def rows(self, name: str) -> list[int]:
        """Return rows to change: the first and last, those at the ends of pieces and files, and the last candidate's first."""
        lengths = [file.length(name) for file in self.actual.trace.files]
        num, ends = sum(lengths), np.cumsum(lengths).tolist()
        stored = self.actual.trace.files[0].stored[name]
        width = stored.dtype.itemsize * (stored.shape[1] if stored.shape[1:] else 1)
        last_piece = (num - 1) // max(1, PIECE_BYTES // width) * max(1, PIECE_BYTES // width)
        rows = {0, num - 1, num // 2, last_piece, last_piece - 1, ends[0], ends[0] - 1, ends[-1] - lengths[-1]}
        return sorted(row for row in rows if 0 <= row < num)

    def change(self, changes: Mapping[str, Values]) -> FileSource:
        """Return the actual trace with changes."""
        trace = copy(self.actual.trace)
        files = []
        begins = dict.fromkeys(changes, 0)
        for file in self.actual.trace.files:
            own: dict[str, Values] = {}
            for name, values in changes.items():
                begin, end = begins[name], begins[name] + file.length(name)
                own[name] = {row - begin: value for row, value in values.items() if begin <= row < end}
                begins[name] = end
            files.append(_ChangedFile(file, own))
        trace.files = files
        return _verified(self.actual, trace)

    def other(self, name: str, row: int, number: int) -> Any:
        """Return another value than the one in a row, which no tolerance excuses."""
        old, expected = (_value(source.trace, name, row) for source in (self.actual, self.expected))
        if name in ("resolvents/score", "candidates/log_probability"):
            dtype = old.dtype.type
            if not np.isfinite(expected):
                return dtype(0)
            tolerance = self.tolerance
            if name == "candidates/log_probability":
                num_steps = max(1, int(_value(self.expected.trace, "candidates/num_steps", row)))
                tolerance = 2 * tolerance * num_steps + 1e-9 * max(1.0, abs(float(expected)))
            end = dtype(np.inf if number % 2 else -np.inf)
            moved = dtype(float(expected) + (1.25 if number % 2 else -1.25) * tolerance)
            return np.nextafter(np.nextafter(moved, end), end)
        if old.ndim:
            # One of the three numbers of an atom.
            new = old.copy()
            new[number % 3] ^= 1 << (8 * (number % 4))
            return new
        return old ^ old.dtype.type(1 << (8 * (number % old.dtype.itemsize)))


def _verified(source: FileSource, trace: TraceFile) -> FileSource:
    """Return a source of a trace whose checksums count as verified."""
    other = copy(source)
    other.trace, other.is_verified = trace, True
    return other


def _value(trace: TraceFile, name: str, row: int) -> Any:
    for file in trace.files:
        if row < file.length(name):
            return file.read(name, row, row + 1)[0]
        row -= file.length(name)
    raise IndexError(row)


def _rows_of(changes: Mapping[str, Values]) -> RowsOf:
    return lambda name: np.array(sorted(changes.get(name, ())), np.int64)


def plant_in_stored_columns(comparer: Comparer) -> Counter[str]:
    """Return the changes planted in each column that was compared as it is stored, all of which were seen.

    InternalError if a change is not seen. Nothing is planted unless the comparison read whole columns from disk.
    """
    expected, actual = comparer.sources
    if comparer.comparison.benign:
        # The rows of a column do not belong together on both sides.
        return Counter()
    if not comparer.is_in_order or not isinstance(expected, FileSource) or not isinstance(actual, FileSource):
        return Counter()
    by_digest = DIGEST in comparer.comparison.coverage.fields
    require(not by_digest or "digests/sequence" in comparer.num_stored, "digests stand for goals and were not compared")
    stored = _Stored(comparer, expected, actual)
    names = [name for name in sorted(expected.stored & actual.stored) if name.startswith(_LEVELS)]
    if not comparer.has_like_digests:
        names = [name for name in names if not name.startswith("digests/")]
    planted = {
        name: {row: stored.other(name, row, number) for number, row in enumerate(stored.rows(name))} for name in names
    }
    planted = {name: values for name, values in planted.items() if values}
    for name in [*_IDENTITY, *COUNTS]:
        if name in planted:
            columns = _open(stored, {name: planted[name]})
            is_same = columns.has_same_candidates() if name in _IDENTITY else columns.has_same_shape()
            require(not is_same, f"traces with another {name} have the same candidates and counts")
            _require_found(columns, name, planted[name])
    rest = {name: values for name, values in planted.items() if name not in (*_IDENTITY, *COUNTS)}
    columns = _open(stored, rest)
    suspects = columns.find_suspects()
    for name, values in rest.items():
        _require_found(columns, name, values)
        for row in values if name.startswith("candidates/") else ():
            is_suspect = any(begin <= row < end for begin, end in suspects)
            require(is_suspect, f"candidate {row} has another {name} and is not compared")
    return Counter({name.replace("/", "."): len(values) for name, values in planted.items()})


def _require_found(columns: StoredColumns, name: str, values: Values) -> None:
    """InternalError unless the changed rows of a column may differ."""
    for row in values:
        is_found = any(begin <= row < end for begin, end in columns.found.get(name, ()))
        require(is_found, f"another {name} in row {row} is not seen")


def _open(stored: _Stored, changes: Mapping[str, Values]) -> StoredColumns:
    return StoredColumns(
        stored.expected,
        stored.change(changes),
        score_tolerance=stored.comparer.score_tolerance,
        has_digests=stored.comparer.has_like_digests,
        progress=lambda num_bytes: None,
        rows_of=_rows_of(changes),
    )
