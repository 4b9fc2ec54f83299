"""Number the names of a column: each is packed into words of eight bytes, and equal words have one number.

Sorting hashes of the words is much faster than looking up every name in a dict, whose entries lie scattered in the memory. That
equal hashes mean equal names is checked.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from kgverify.program.atom_table import find_first_occurrences

_MOST_BYTES: Final = 64
"""The longest name that is packed."""
_FACTORS: Final = np.random.default_rng(0).integers(0, 2**64, _MOST_BYTES // 8, np.uint64) | np.uint64(1)


class _Packed:
    """Names as words, and what follows from their hashes.

    words:  uint64 [n, W]
    first:  int64 [u]  a row of each different name
    number: int64 [n]  the index in `first` of each name
    """

    def __init__(self, words: NDArray[np.uint64]) -> None:
        self.words = words
        # A word of zeros adds nothing, so that the hash of a name does not depend on W.
        hashes = np.zeros(len(words), np.uint64)
        for column, factor in zip(words.T, _FACTORS, strict=False):
            product = column * factor
            product ^= product >> np.uint64(29)
            hashes += product
        order = np.argsort(hashes)
        ascending = hashes[order]
        is_first = np.ones(len(order), np.bool_)
        np.not_equal(ascending[1:], ascending[:-1], out=is_first[1:])
        self.first = order[is_first]
        self.number = np.empty(len(order), np.int64)
        self.number[order] = np.cumsum(is_first) - 1

    @property
    def is_exact(self) -> bool:
        """True if names with the same number are equal."""
        of_same_number = self.first[self.number]
        return all(np.array_equal(column, column[of_same_number]) for column in self.words.T)


class NameColumn:
    """The names of a column, added in chunks."""

    def __init__(self) -> None:
        self._chunks: list[NDArray[np.uint64]] = []
        self._num = 0

    def add(
        self, stored: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> NDArray[np.int64] | None:
        """Return preliminary numbers of the names between positions of a text, int64 [n]; None if they cannot be packed."""
        lengths = ends - starts
        width = -(-int(lengths.max(initial=1)) // 8) * 8
        # A packed name ends with zeros.
        if width > _MOST_BYTES or not stored.all():
            return None
        padded = np.concatenate((stored, np.zeros(width, np.uint8)))
        packed = np.lib.stride_tricks.sliding_window_view(padded, width)[starts]
        packed[np.arange(width) >= lengths[:, None]] = 0
        names = _Packed(packed.view("<u8"))
        if not names.is_exact:
            return None
        numbers = names.number + self._num
        self._chunks.append(names.words[names.first])
        self._num += len(names.first)
        return numbers

    def finish(self, numbers: NDArray[np.int32]) -> tuple[str, ...] | None:
        """Replace preliminary numbers, int32 [n, k], by those in order of first occurrence, and return the names in this order.

        None if two different names have one hash.
        """
        width = max(each.shape[1] for each in self._chunks)
        words = np.zeros((self._num, width), "<u8")
        row = 0
        while self._chunks:
            chunk = self._chunks.pop(0)
            words[row : row + len(chunk), : chunk.shape[1]] = chunk
            row += len(chunk)
        names = _Packed(words)
        if not names.is_exact:
            return None
        numbers[...] = names.number.astype(np.int32)[numbers]
        words = words[names.first]
        # It takes as much memory as all that follows.
        del names
        order = find_first_occurrences(numbers.ravel(), len(words))
        final = np.empty(len(order), np.int32)
        final[order] = np.arange(len(order))
        numbers[...] = final[numbers]
        joined = words[order].view(f"S{8 * width}").ravel().tolist()
        return tuple(b"\n".join(joined).decode().split("\n"))
