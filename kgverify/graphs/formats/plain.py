"""Read files of triples in which nothing needs attention: most large ones. Names are found and numbered a column at a time.

`parse_table` and `parse_facts` read them in the same way, only slower. Tests compare both.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kgverify.graphs.formats.names import MOST_BYTES, NameColumn
from kgverify.graphs.formats.reading import Triples
from kgverify.program.atom_table import AtomTable

_CHUNK: Final = 1 << 20
"""Bytes that are read at once."""
_LINE_END: Final = ord("\n")

_NAME, _OTHER = 0, 6
_SIGNS: Final = "(,).\n"
_KINDS: Final = np.full(256, _OTHER, np.uint8)
"""The kind of each byte in functional form: a character of names, one of the signs, or another."""
_KINDS[np.frombuffer(b"_/-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", np.uint8)] = _NAME
for _number, _sign in enumerate(_SIGNS, 1):
    _KINDS[ord(_sign)] = _number

_Find = Callable[[NDArray[np.uint8]], NDArray[np.int64] | None]
"""Bytes of whole lines -> the positions of the signs between names, int64 [lines, signs]; None if there are others."""


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
    """Parse facts in functional form, one a line, whose names are of ASCII letters, digits, `_`, `-` and `/`.

    None for any other text, and for a predicate that begins with `-`.
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
        # Names have at least one character, and nothing stands between the other signs.
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
    """Yield the bytes of whole lines, followed by at least `MOST_BYTES` others, and the number of those before these."""
    stored = np.frombuffer(content, np.uint8)
    begin = 0
    while begin < len(content):
        end = content.find(b"\n", begin + _CHUNK) + 1 or len(content)
        chunk, size = stored[begin : end + MOST_BYTES], end - begin
        if end + MOST_BYTES > len(content):
            # Line feeds follow the last line, one of which may belong to it.
            chunk = np.append(chunk, np.full(MOST_BYTES + 1, _LINE_END, np.uint8))
            size += not content.endswith(b"\n") and end == len(content)
        yield chunk, size
        begin = end
