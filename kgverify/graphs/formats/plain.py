"""Read files of triples in which nothing needs attention: most large ones. Names are found and numbered a column at a time.

`parse_table` and `parse_facts` read them in the same way, only slower. Tests compare both.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kgverify.graphs.formats.names import NameColumn
from kgverify.graphs.formats.parsed import Triples
from kgverify.program.atom_table import AtomTable

_CHUNK: Final = 1 << 21
"""Characters that are read at once."""

_NAME, _OTHER = 0, 6
_SIGNS: Final = "(,).\n"
_KINDS: Final = np.full(256, _OTHER, np.uint8)
"""The kind of each byte in functional form: a character of names, one of the signs, or another."""
_KINDS[np.frombuffer(b"_/-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", np.uint8)] = _NAME
for _number, _sign in enumerate(_SIGNS, 1):
    _KINDS[ord(_sign)] = _number

_Find = Callable[[NDArray[np.uint8]], NDArray[np.int64] | None]
"""Bytes of whole lines -> the positions of the signs between names, int64 [lines, signs]; None if there are others."""


def parse_plain_table(text: str, delimiter: str, is_special: Callable[[str], bool]) -> Triples | None:
    """Parse a table in which every line has three names.

    Args:
        text: The text, with lines that end with LF.
        delimiter: An ASCII character.
        is_special: Whether some of the names, each between line feeds, need attention.

    Returns:
        The triples; None for any other table.
    """
    signs = np.array([ord(delimiter), ord(delimiter), ord("\n")], np.uint8)

    def find(stored: NDArray[np.uint8]) -> NDArray[np.int64] | None:
        places = np.flatnonzero((stored == signs[0]) | (stored == signs[2]))
        if len(places) % 3 or (stored[places].reshape(-1, 3) != signs).any():
            return None
        return places.reshape(-1, 3)

    atoms = _read(text, find, (1, 0, 2))
    if atoms is None or is_special("\n".join(("", *atoms.predicates, *atoms.constants, ""))):
        return None
    return Triples(atoms, range(1, len(atoms) + 1), is_table=True)


def parse_plain_facts(text: str) -> Triples | None:
    """Parse facts in functional form, one a line, whose names are of ASCII letters, digits, `_`, `-` and `/`.

    None for any other text.
    """
    has_dots = text[: text.find("\n")].endswith(".")
    signs = np.array([1, 2, 3, 4, 5] if has_dots else [1, 2, 3, 5], np.uint8)

    def find(stored: NDArray[np.uint8]) -> NDArray[np.int64] | None:
        kinds = _KINDS[stored]
        places = np.flatnonzero(kinds)
        if len(places) % len(signs) or (kinds[places].reshape(-1, len(signs)) != signs).any():
            return None
        # Names have at least one character, and nothing stands between the other signs.
        lengths = np.diff(places, prepend=-1).reshape(-1, len(signs)) - 1
        return None if lengths[:, :3].min() < 1 or lengths[:, 3:].any() else places.reshape(-1, len(signs))

    atoms = _read(text, find, (0, 1, 2))
    return None if atoms is None else Triples(atoms, range(1, len(atoms) + 1))


def _read(text: str, find: _Find, order: Sequence[int]) -> AtomTable | None:
    """Return the atoms of a text whose lines have the signs that `find` finds.

    order: which of the names of a line are the predicate, the first and the second argument
    """
    rows = np.empty((text.count("\n") + (not text.endswith("\n")), 3), np.int32)
    predicates, constants = NameColumn(), NameColumn()
    end = 0
    for chunk in _split_chunks(text):
        stored = np.frombuffer(chunk.encode(), np.uint8)
        places = find(stored)
        if places is None:
            return None
        begin, end = end, end + len(places)
        ends = places[:, :3]
        starts = np.concatenate(([0], places.ravel()[:-1] + 1)).reshape(places.shape)[:, :3]
        for column, names in ((slice(0, 1), predicates), (slice(1, 3), constants)):
            at = np.array(order[column])
            found = names.add(stored, starts[:, at].ravel(), ends[:, at].ravel())
            if found is None:
                return None
            rows[begin:end, column] = found.reshape(-1, len(at))
    if not end:
        return None
    return AtomTable(predicates.finish(rows[:, :1]), constants.finish(rows[:, 1:]), rows)


def _split_chunks(text: str) -> Iterator[str]:
    """Yield the text in parts that end with lines."""
    begin = 0
    while begin < len(text):
        end = text.find("\n", begin + _CHUNK) + 1 or len(text)
        chunk = text[begin:end]
        yield chunk if chunk.endswith("\n") else chunk + "\n"
        begin = end
