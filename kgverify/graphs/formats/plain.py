"""Read files of triples without special cases, as most large files are. Names are found and numbered one column at a time.

Each name is packed into words of eight bytes, and equal names get the same number. The words are found in a hash table of
numpy arrays, all names of a chunk at once. This is much faster than looking up every name in a dict, whose entries are
scattered in memory. Words are compared as well, so equal hashes do no harm.

`parse_table` and `parse_facts` read the same files in the same way, but slower. Tests compare both.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kgverify.graphs.formats.reading import Triples
from kgverify.program.atom_table import AtomTable

_CHUNK: Final = 1 << 20
"""The number of bytes read at once."""
_LINE_END: Final = ord("\n")

_NAME, _OTHER = 0, 6
_SIGNS: Final = "(,).\n"
_KINDS: Final = np.full(256, _OTHER, np.uint8)
"""The kind of each byte in functional form: a character of a name, one of the signs, or anything else."""
_KINDS[np.frombuffer(b"_/-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", np.uint8)] = _NAME
for _number, _sign in enumerate(_SIGNS, 1):
    _KINDS[ord(_sign)] = _number

_Find = Callable[[NDArray[np.uint8]], NDArray[np.int64] | None]
"""Bytes of whole lines -> the positions of the signs between names, int64 [lines, signs]; None if there are other signs."""


def parse_plain_table(content: bytes, delimiter: str, special_beginnings: bytes) -> Triples | None:
    """Parse a table in which every line has three names and nothing needs attention.

    Args:
        content: A text in UTF-8, with lines that end with LF.
        delimiter: An ASCII character.
        special_beginnings: The first bytes of names that need attention; empty names and a last blank do as well.

    Returns:
        The triples; None for any other table.
    """
    signs = np.array([ord(delimiter), ord(delimiter), _LINE_END], np.uint8)
    is_special = np.zeros(256, np.bool_)
    is_special[[*special_beginnings, _LINE_END]] = True

    def find(stored: NDArray[np.uint8]) -> NDArray[np.int64] | None:
        places = np.flatnonzero((stored == signs[0]) | (stored == _LINE_END))
        if len(places) % 3 or (stored[places].reshape(-1, 3) != signs).any():
            return None
        return places.reshape(-1, 3)

    def check(names: NDArray[np.uint8]) -> bool:
        ends = np.flatnonzero(names == _LINE_END)
        firsts = names[np.concatenate(([0], ends[:-1] + 1))]
        return not (is_special[firsts].any() or (names[ends - 1] == ord(" ")).any())

    atoms = _read(content, find, check, (1, 0, 2))
    return None if atoms is None else Triples(atoms, range(1, len(atoms) + 1), is_table=True)


def parse_plain_facts(content: bytes) -> Triples | None:
    """Parse facts in functional form, one per line, with names of ASCII letters, digits, `_`, `-` and `/`.

    Return None for any other text, and for a predicate that begins with `-`.
    """
    if content.startswith(b"-") or b"\n-" in content:
        return None  # Negated facts.
    has_dots = content[: content.find(b"\n")].endswith(b".")
    signs = np.array([1, 2, 3, 4, 5] if has_dots else [1, 2, 3, 5], np.uint8)

    def find(stored: NDArray[np.uint8]) -> NDArray[np.int64] | None:
        kinds = _KINDS[stored]
        places = np.flatnonzero(kinds)
        if len(places) % len(signs) or (kinds[places].reshape(-1, len(signs)) != signs).any():
            return None
        # Each name has at least one character, and nothing is between the other signs.
        lengths = np.diff(places, prepend=-1).reshape(-1, len(signs)) - 1
        return None if lengths[:, :3].min() < 1 or lengths[:, 3:].any() else places.reshape(-1, len(signs))

    atoms = _read(content, find, lambda _: True, (0, 1, 2))
    return None if atoms is None else Triples(atoms, range(1, len(atoms) + 1))


def _read(
    content: bytes, find: _Find, check: Callable[[NDArray[np.uint8]], bool], order: Sequence[int]
) -> AtomTable | None:
    """Return the atoms of a text in UTF-8; None if it needs another reader.

    Args:
        content: The text, with lines that end with LF.
        find: The function that finds the signs of the lines.
        check: Whether names, each before a line feed, are what they seem.
        order: Which of the names of a line are the predicate, the first and the second argument.
    """
    if not content or b"\0" in content:
        return None
    num_lines = sum(int(np.count_nonzero(chunk[:size] == _LINE_END)) for chunk, size in _split_chunks(content))
    rows = np.empty((num_lines, 3), np.int32)
    predicates, constants = NameColumn(), NameColumn()
    end = 0
    for chunk, size in _split_chunks(content):
        places = find(chunk[:size])
        if places is None:
            return None
        begin, end = end, end + len(places)
        ends = places[:, :3]
        starts = np.concatenate(([0], places.ravel()[:-1] + 1)).reshape(places.shape)[:, :3]
        for column, names in ((slice(0, 1), predicates), (slice(1, 3), constants)):
            at = np.array(order[column])
            found = names.add(chunk, starts[:, at].ravel(), ends[:, at].ravel())
            if found is None:
                return None
            rows[begin:end, column] = found.reshape(-1, len(at))
    finished = predicates.finish(rows[:, :1]), constants.finish(rows[:, 1:])
    if not all(map(check, finished)):
        return None
    return AtomTable(_split_names(finished[0]), _split_names(finished[1]), rows)


def _split_names(names: NDArray[np.uint8]) -> tuple[str, ...]:
    return tuple(names[:-1].tobytes().decode().split("\n"))


def _split_chunks(content: bytes) -> Iterator[tuple[NDArray[np.uint8], int]]:
    """Yield chunks of whole lines, padded with at least `MOST_BYTES` bytes, and the length of each without the padding."""
    stored = np.frombuffer(content, np.uint8)
    begin = 0
    while begin < len(content):
        end = content.find(b"\n", begin + _CHUNK) + 1 or len(content)
        chunk, size = stored[begin : end + MOST_BYTES], end - begin
        if end + MOST_BYTES > len(content):
            # Line feeds follow the last line; the first of them may belong to it.
            chunk = np.append(chunk, np.full(MOST_BYTES + 1, _LINE_END, np.uint8))
            size += not content.endswith(b"\n") and end == len(content)
        yield chunk, size
        begin = end


MOST_BYTES: Final = 64
"""The length in bytes of the longest name that is packed."""
_FACTORS: Final = np.random.default_rng(0).integers(0, 2**64, MOST_BYTES // 8, np.uint64) | np.uint64(1)
_MASKS: Final = np.array([(1 << 8 * length) - 1 for length in range(9)], np.uint64)
"""The mask of the first n bytes of a word, for each n."""
_MOST_PROBES: Final = 256
"""The maximum number of slots searched for a name. More are needed only if names were chosen to share a hash."""
_EMPTY: Final = -1
_FEWEST_SLOTS: Final = 1 << 12
_ROWS: Final = 1 << 16
"""The number of rows whose numbers are replaced at once."""


class NameColumn:
    """The names of a column, added in chunks."""

    def __init__(self) -> None:
        self._num = 0
        self._num_added = 0
        # For each distinct name: its words, uint64 [W, capacity], its hash, and the index of its first occurrence among all
        # added names. The first `num` columns are used.
        self._words: NDArray[np.uint64] = np.zeros((1, 1), np.uint64)
        self._hashes: NDArray[np.uint64] = np.zeros(1, np.uint64)
        self._firsts: NDArray[np.int64] = np.zeros(1, np.int64)
        self._slots: NDArray[np.int32] = np.full(_FEWEST_SLOTS, _EMPTY, np.int32)

    def add(
        self, stored: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> NDArray[np.int32] | None:
        """Return preliminary numbers of names, int32 [n]; None if they cannot be packed.

        Args:
            stored: Bytes without NUL in the names, and at least `MOST_BYTES` of them after the last name.
            starts: Where each name begins.
            ends: Where each name ends.
        """
        lengths = ends - starts
        width = max(1, -(-int(lengths.max(initial=1)) // 8))
        if 8 * width > MOST_BYTES:
            return None
        # The eight bytes at each position.
        at: NDArray[np.uint64] = np.ndarray((len(stored) - 7,), "<u8", stored, strides=(1,))
        words = np.zeros((width, len(starts)), np.uint64)
        words[0] = at[starts] & _MASKS[np.minimum(lengths, 8) if width > 1 else lengths]
        hashes = _mix(words[0], 0)
        for i in range(1, width):
            rows = np.flatnonzero(lengths > 8 * i)
            found = at[starts[rows] + 8 * i] & _MASKS[np.minimum(lengths[rows] - 8 * i, 8)]
            words[i, rows] = found
            hashes[rows] += _mix(found, i)
        hashes *= _FACTORS[0]
        return self._number(words, hashes)

    def _number(self, words: NDArray[np.uint64], hashes: NDArray[np.uint64]) -> NDArray[np.int32] | None:
        width = max(len(words), len(self._words))
        words, self._words = _widen(words, width), _widen(self._words, width)
        slots = self._first_slots(hashes)
        numbers = self._slots[slots]
        pending = np.flatnonzero(~self._are_equal(numbers, words))
        slots = slots[pending]
        probes = 0
        while len(pending):
            is_empty = self._slots[slots] == _EMPTY
            if is_empty.any():
                num_slots = len(self._slots)
                self._insert(words, hashes, pending[is_empty], slots[is_empty])
                if len(self._slots) != num_slots:
                    slots, probes = self._first_slots(hashes[pending]), 0
                    continue
            found = self._slots[slots]
            is_same = self._are_equal(found, words[:, pending])
            numbers[pending[is_same]] = found[is_same]
            pending, slots = pending[~is_same], (slots[~is_same] + 1) & (len(self._slots) - 1)
            probes += 1
            if probes > _MOST_PROBES:
                return None
        self._num_added += len(numbers)
        return numbers

    def _are_equal(self, numbers: NDArray[np.int32], words: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return whether the names with these numbers have these words, uint64 [W, n]."""
        is_equal: NDArray[np.bool_] = numbers != _EMPTY
        for stored, wanted in zip(self._words, words, strict=True):
            is_equal &= stored[numbers] == wanted
        return is_equal

    def _first_slots(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        bits = len(self._slots).bit_length() - 1
        return (hashes >> np.uint64(64 - bits)).view(np.int64)

    def _insert(
        self, words: NDArray[np.uint64], hashes: NDArray[np.uint64], rows: NDArray[np.int64], slots: NDArray[np.int64]
    ) -> None:
        """Store names in empty slots. If several names have the same slot, store the first."""
        # numpy keeps the last value assigned to a repeated index.
        self._slots[slots[::-1]] = np.arange(len(rows) - 1, -1, -1, dtype=np.int32)
        is_stored = self._slots[slots] == np.arange(len(rows))
        rows, slots = rows[is_stored], slots[is_stored]
        begin, end = self._num, self._num + len(rows)
        if end > len(self._hashes):
            more = max(end, 2 * begin) - len(self._hashes)
            self._words = np.pad(self._words, ((0, 0), (0, more)))
            self._hashes, self._firsts = np.pad(self._hashes, (0, more)), np.pad(self._firsts, (0, more))
        self._words[:, begin:end], self._hashes[begin:end] = words[:, rows], hashes[rows]
        self._firsts[begin:end] = self._num_added + rows
        self._slots[slots] = np.arange(begin, end, dtype=np.int32)
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

    def finish(self, numbers: NDArray[np.int32]) -> NDArray[np.uint8]:
        """Replace preliminary numbers, int32 [n, k], by numbers in the order of first occurrence.

        Return the names in this order, as bytes with a line feed after each name.
        """
        del self._slots
        order = np.argsort(self._firsts[: self._num])
        final = np.empty(len(order), np.int32)
        final[order] = np.arange(len(order))
        for begin in range(0, len(numbers), _ROWS):
            some = numbers[begin : begin + _ROWS]
            some[...] = final[some]
        # A packed name ends with zeros.
        padded: NDArray[np.uint8] = np.full((len(order), 8 * len(self._words) + 1), _LINE_END, np.uint8)
        padded[:, :-1] = self._words.T[order].astype("<u8", copy=False).view(np.uint8)
        names: NDArray[np.uint8] = padded[padded != 0]
        return names


def _mix(words: NDArray[np.uint64], index: int) -> NDArray[np.uint64]:
    """Return the contribution to the hashes of the words at one index."""
    product: NDArray[np.uint64] = words * _FACTORS[index]
    product ^= product >> np.uint64(29)
    return product


def _widen(words: NDArray[np.uint64], width: int) -> NDArray[np.uint64]:
    """Pad names with zero words at the end: uint64 [width, n]."""
    return words if len(words) == width else np.pad(words, ((0, width - len(words)), (0, 0)))
