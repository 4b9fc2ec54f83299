"""Number the names of a column: each is packed into words of eight bytes, and equal words have one number.

The words are found in a hash table of numpy arrays, all names of a chunk at once. This is much faster than looking up every
name in a dict, whose entries lie scattered in the memory. Words are compared, so that equal hashes decide nothing.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kgverify.program.atom_table import find_first_occurrences

_MOST_BYTES: Final = 64
"""The longest name that is packed."""
_FACTORS: Final = np.random.default_rng(0).integers(0, 2**64, _MOST_BYTES // 8, np.uint64) | np.uint64(1)
_MOST_PROBES: Final = 256
"""The slots in which a name is looked for; further ones are needed only for names chosen to have one hash."""
_EMPTY: Final = -1
_FEWEST_SLOTS: Final = 1 << 12


class NameColumn:
    """The names of a column, added in chunks."""

    def __init__(self) -> None:
        self._num = 0
        # Of each different name: its words, uint64 [capacity, W], and its hash; the first `num` rows are used.
        self._words: NDArray[np.uint64] = np.zeros((0, 1), np.uint64)
        self._hashes: NDArray[np.uint64] = np.zeros(0, np.uint64)
        self._slots: NDArray[np.int32] = np.full(_FEWEST_SLOTS, _EMPTY, np.int32)

    def add(
        self, stored: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> NDArray[np.int32] | None:
        """Return preliminary numbers of the names between positions of a text, int32 [n]; None if they cannot be packed."""
        lengths = ends - starts
        width = max(1, -(-int(lengths.max(initial=1)) // 8))
        # A packed name ends with zeros.
        if 8 * width > _MOST_BYTES or not stored.all():
            return None
        padded = np.concatenate((stored, np.zeros(8 * width, np.uint8)))
        # The eight bytes at each position.
        at: NDArray[np.uint64] = np.ndarray((len(padded) - 7,), "<u8", padded, strides=(1,))
        words = np.empty((len(starts), width), np.uint64)
        hashes = np.zeros(len(starts), np.uint64)
        for i in range(width):
            bits = (8 * np.clip(lengths - 8 * i, 0, 8)).astype(np.uint64)
            # A shift by 64 bits is undefined.
            mask = np.where(bits == 64, ~np.uint64(0), (np.uint64(1) << (bits & np.uint64(63))) - np.uint64(1))
            words[:, i] = at[starts + 8 * i] & mask
            # A word of zeros adds nothing, so that the hash of a name does not depend on W.
            product = words[:, i] * _FACTORS[i]
            product ^= product >> np.uint64(29)
            hashes += product
        hashes *= _FACTORS[0]
        return self._number(words, hashes)

    def _number(self, words: NDArray[np.uint64], hashes: NDArray[np.uint64]) -> NDArray[np.int32] | None:
        self._widen(words.shape[1])
        words = np.pad(words, ((0, 0), (0, self._words.shape[1] - words.shape[1])))
        numbers = np.full(len(words), _EMPTY, np.int32)
        pending = np.arange(len(words))
        probes = 0
        slots = self._first_slots(hashes)
        while len(pending):
            found = self._slots[slots]
            is_empty = found == _EMPTY
            if is_empty.any():
                num_slots = len(self._slots)
                self._insert(words, hashes, pending[is_empty], slots[is_empty])
                if len(self._slots) != num_slots:
                    slots, probes = self._first_slots(hashes[pending]), 0
                    continue
                found = self._slots[slots]
            is_same = (self._words[found] == words[pending]).all(1)
            numbers[pending[is_same]] = found[is_same]
            pending, slots = pending[~is_same], (slots[~is_same] + 1) & (len(self._slots) - 1)
            probes += 1
            if probes > _MOST_PROBES:
                return None
        return numbers

    def _first_slots(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        bits = len(self._slots).bit_length() - 1
        return (hashes >> np.uint64(64 - bits)).astype(np.int64)

    def _insert(
        self, words: NDArray[np.uint64], hashes: NDArray[np.uint64], rows: NDArray[np.int64], slots: NDArray[np.int64]
    ) -> None:
        """Store names in empty slots, one in each; of several names for a slot one is stored."""
        self._slots[slots] = np.arange(len(rows), dtype=np.int32)
        is_stored = self._slots[slots] == np.arange(len(rows))
        rows, slots = rows[is_stored], slots[is_stored]
        end = self._num + len(rows)
        if end > len(self._words):
            self._words = _grow(self._words, end)
            self._hashes = _grow(self._hashes, end)
        self._words[self._num : end], self._hashes[self._num : end] = words[rows], hashes[rows]
        self._slots[slots] = np.arange(self._num, end, dtype=np.int32)
        self._num = end
        if 2 * end > len(self._slots):
            self._rebuild(8 * len(self._slots))

    def _rebuild(self, num_slots: int) -> None:
        """Put all names into a larger table."""
        self._slots = np.full(num_slots, _EMPTY, np.int32)
        pending = np.arange(self._num, dtype=np.int32)
        slots = self._first_slots(self._hashes[: self._num])
        while len(pending):
            is_empty = self._slots[slots] == _EMPTY
            self._slots[slots[is_empty]] = pending[is_empty]
            is_left = self._slots[slots] != pending
            pending, slots = pending[is_left], (slots[is_left] + 1) & (num_slots - 1)

    def _widen(self, width: int) -> None:
        missing = width - self._words.shape[1]
        if missing > 0:
            self._words = np.pad(self._words, ((0, 0), (0, missing)))

    def finish(self, numbers: NDArray[np.int32]) -> tuple[str, ...]:
        """Replace preliminary numbers, int32 [n, k], by those in order of first occurrence; return the names in this order."""
        words = self._words[: self._num]
        del self._slots
        order = find_first_occurrences(numbers.ravel(), len(words))
        final = np.empty(len(order), np.int32)
        final[order] = np.arange(len(order))
        numbers[...] = final[numbers]
        joined = words[order].astype("<u8", copy=False).view(f"S{8 * words.shape[1]}").ravel().tolist()
        return tuple(b"\n".join(joined).decode().split("\n"))


def _grow(rows: NDArray[Any], num: int) -> NDArray[Any]:
    """Return rows with space for at least `num`."""
    larger = np.empty((max(num, 2 * len(rows)), *rows.shape[1:]), rows.dtype)
    larger[: len(rows)] = rows
    return larger
