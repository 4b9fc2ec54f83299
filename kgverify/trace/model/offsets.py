"""Offsets of ragged rows: counts summed only as far as a caller needs them."""

from bisect import bisect_right
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kgverify.errors import UserError
from kgverify.trace.model.columns import expand_rows

ADD_UP: Final = "write one count per row of the level above, adding up to the rows of the level below"

_BLOCK: Final = 64
_READ_ROWS: Final = 1 << 20
_SUM_ROWS: Final = 1 << 16
_LANES: Final = 1 << 10
_MIN_ANCHOR: Final = 1 << 12


def check_counts(counts: NDArray[Any], num_rows: int, below: str, where: str) -> None:
    """Raise a UserError unless unsigned counts add up to the rows of the level below, called `below`."""
    total = int(counts.sum(dtype=np.uint64))
    # The second test: a sum modulo 2^64 proves nothing.
    if total != num_rows or (len(counts) and int(counts.max()) > num_rows):
        raise UserError(f"counts add up to {total}, but there are {num_rows} {below}", where=where, fix=ADD_UP)


class Offsets:
    """The offsets that belong to a column of counts.

    read:  returns the counts from one row to another
    take:  returns the counts of rows in any order
    total: rows of the level below, to which the counts add up
    where: the column's name in errors

    A single offset is summed from the nearest one known, so that the first look into a large file reads a part of one
    column; sums are remembered. `build` sums everything once, and keeps a number for every 64 rows.
    """

    def __init__(
        self,
        read: Callable[[int, int], NDArray[Any]],
        take: Callable[[NDArray[np.int64]], NDArray[Any]],
        num_rows: int,
        total: int,
        where: str,
    ) -> None:
        self._read = read
        self._take = take
        self._num_rows = num_rows
        self._total = total
        self._where = where
        self._rows = [0, num_rows] if num_rows else [0]
        self._offsets = [0, total] if num_rows else [0]
        self._starts: NDArray[np.int64] | None = None
        if not num_rows and total:
            raise self._wrong(0)

    def at(self, row: int) -> int:
        """Return the offset of a row, or the end of the last row for the one after it. UserError if counts lead outside."""
        i = bisect_right(self._rows, row) - 1
        known, offset = self._rows[i], self._offsets[i]
        if row == known:
            return offset
        after, end = self._rows[i + 1], self._offsets[i + 1]
        if row - known <= after - row:
            offset += self._sum(known, row)
        else:
            offset = end - self._sum(row, after)
        if not self._offsets[i] <= offset <= end:
            raise self._wrong(None)
        if min(row - known, after - row) >= _MIN_ANCHOR:
            self._rows.insert(i + 1, row)
            self._offsets.insert(i + 1, offset)
        return offset

    def build(self) -> NDArray[np.int64]:
        """Return int64 [n / 64 + 1], the offset of every 64th row. UserError unless the counts add up."""
        if self._starts is None:
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
            # Counts are unsigned and of 32 bits at most: their sum cannot wrap.
            if int(starts[-1]) != self._total:
                raise self._wrong(int(starts[-1]))
            self._starts = starts
        return self._starts

    def of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return int64 [n], the offset of each of the given rows."""
        starts = self.build()
        block = rows // _BLOCK
        first = block * _BLOCK
        bounds = np.stack((first, rows), axis=1).reshape(-1)
        # Each pair of bounds as one ragged row of a single array of starts.
        elements = expand_rows(bounds, np.arange(0, len(bounds), 2))
        running = np.zeros(len(elements) + 1, np.int64)
        np.cumsum(self._take(elements), out=running[1:])
        ends = np.cumsum(rows - first)
        found: NDArray[np.int64] = starts[block] + running[ends] - running[ends - (rows - first)]
        return found

    def row_of(self, element: int) -> int:
        """Return the row to which an element of the level below belongs."""
        starts = self.build()
        block = int(np.searchsorted(starts, element, side="right")) - 1
        begin = block * _BLOCK
        counts = self._read(begin, min(begin + _BLOCK, self._num_rows))
        ends = int(starts[block]) + np.cumsum(counts, dtype=np.int64)
        return begin + int(np.searchsorted(ends, element, side="right"))

    def _sum(self, begin: int, end: int) -> int:
        return sum(sum_counts(self._read(low, min(low + _READ_ROWS, end))) for low in range(begin, end, _READ_ROWS))

    def _wrong(self, found: int | None) -> UserError:
        what = f"add up to {found}" if found is not None else "lead outside"
        return UserError(f"counts {what}, but there are {self._total} rows below", where=self._where, fix=ADD_UP)


def sum_counts(counts: NDArray[Any]) -> int:
    """Sum unsigned counts; add small ones in their own type, which is several times faster."""
    total = 0
    for low in range(0, len(counts), _SUM_ROWS):
        piece = counts[low : low + _SUM_ROWS]
        num_lanes = len(piece) // _LANES
        if num_lanes and int(piece.max()) * num_lanes <= np.iinfo(piece.dtype).max:
            even = piece[: num_lanes * _LANES].reshape(num_lanes, _LANES)
            total += int(even.sum(axis=0, dtype=piece.dtype).sum(dtype=np.uint64))
            piece = piece[num_lanes * _LANES :]
        total += int(piece.sum(dtype=np.uint64))
    return total
