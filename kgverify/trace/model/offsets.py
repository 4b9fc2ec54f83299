"""The offsets of ragged rows, computed from their counts."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kgverify.errors import UserError
from kgverify.trace.model.columns import expand_rows

ADD_UP: Final = "write one count per row of the level above, adding up to the rows of the level below"

_BLOCK: Final = 64
_READ_ROWS: Final = 1 << 20


def check_counts(counts: NDArray[Any], num_rows: int, below: str, where: str) -> None:
    """Raise a UserError unless unsigned counts add up to the number of rows of the level below, which is named `below`."""
    total = int(counts.sum(dtype=np.uint64))
    # The second test is needed because the sum may have wrapped modulo 2^64.
    if total != num_rows or (len(counts) and int(counts.max()) > num_rows):
        raise UserError(f"counts add up to {total}, but there are {num_rows} {below}", where=where, fix=ADD_UP)


class Offsets:
    """The offsets computed from a column of counts.

    read:     a function that returns the counts of a range of rows
    take:     a function that returns the counts of rows in any order
    num_rows: the number of counts
    total:    the number of rows of the level below, to which the counts must add up
    where:    the column's name in errors

    The first use sums the whole column, and keeps a number for every 64 rows. It raises a UserError unless the counts add up.
    """

    def __init__(
        self,
        read: Callable[[int, int], NDArray[Any]],
        take: Callable[[NDArray[np.int64]], NDArray[Any]],
        num_rows: int,
        total: int,
        where: str,
    ) -> None:
        self._read, self._take, self._num_rows = read, take, num_rows
        self._total, self._where = total, where
        self._starts: NDArray[np.int64] | None = None

    def build(self) -> NDArray[np.int64]:
        """Return int64 [n / 64 + 1], the offset of every 64th row. UserError unless the counts add up."""
        if self._starts is not None:
            return self._starts
        starts = np.zeros(-(-self._num_rows // _BLOCK) + 1, np.int64)
        for begin in range(0, self._num_rows, _READ_ROWS):
            counts = self._read(begin, min(begin + _READ_ROWS, self._num_rows))
            num_whole = len(counts) // _BLOCK
            low = begin // _BLOCK + 1
            whole = counts[: num_whole * _BLOCK].reshape(num_whole, _BLOCK)
            starts[low : low + num_whole] = whole.sum(axis=1, dtype=np.int64)
            if len(counts) % _BLOCK:
                starts[low + num_whole] = counts[num_whole * _BLOCK :].sum(dtype=np.int64)
        np.cumsum(starts, out=starts)
        # Counts are unsigned and have at most 32 bits: their sum cannot wrap.
        if int(starts[-1]) != self._total:
            message = f"counts add up to {starts[-1]}, but there are {self._total} rows below"
            raise UserError(message, where=self._where, fix=ADD_UP)
        self._starts = starts
        return starts

    def at(self, row: int) -> int:
        """Return the offset of a row; for the row after the last, return the end of the last row."""
        first = row // _BLOCK * _BLOCK
        return int(self.build()[row // _BLOCK]) + int(self._read(first, row).sum(dtype=np.int64))

    def of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return int64 [n], the offset of each of the given rows."""
        block = rows // _BLOCK
        first = block * _BLOCK
        bounds = np.stack((first, rows), axis=1).reshape(-1)
        # Treat each pair of bounds as one ragged row of a single array of starts.
        elements = expand_rows(bounds, np.arange(0, len(bounds), 2))
        running = np.zeros(len(elements) + 1, np.int64)
        np.cumsum(self._take(elements), out=running[1:])
        ends = np.cumsum(rows - first)
        found: NDArray[np.int64] = self.build()[block] + running[ends] - running[ends - (rows - first)]
        return found

    def row_of(self, element: int) -> int:
        """Return the row to which an element of the level below belongs."""
        block = int(np.searchsorted(self.build(), element, side="right")) - 1
        begin = block * _BLOCK
        counts = self._read(begin, min(begin + _BLOCK, self._num_rows))
        ends = int(self.build()[block]) + np.cumsum(counts, dtype=np.int64)
        return begin + int(np.searchsorted(ends, element, side="right"))


def refuse_first(is_bad: NDArray[np.bool_], text: str, *columns: NDArray[Any], where: str, fix: str) -> None:
    """Raise a UserError about the first bad row, if there is one.

    text: the problem, with `{}` for the row's values in the columns: `is {}, expected 0 to 3`
    """
    if is_bad.any():
        row = int(np.argmax(is_bad))
        raise UserError(f"row {row} {text.format(*(column[row] for column in columns))}", where=where, fix=fix)
