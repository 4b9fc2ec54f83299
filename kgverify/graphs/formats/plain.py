"""Read files of triples in which nothing needs attention: most large ones. Columns are read in chunks, without lines.

`parse_table` and `parse_facts` read them in the same way, only slower. Tests compare both.
"""

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from kgverify.graphs.formats.parsed import Triples
from kgverify.program.atom_table import AtomTable, Numbering

_CHUNK: Final = 1 << 22
"""Characters that are read at once."""

_NAME, _OTHER = 0, 6
_SIGNS: Final = "(,).\n"
_KINDS: Final = np.full(256, _OTHER, np.uint8)
"""The kind of each byte in functional form: a character of names, one of the signs, or another."""
_KINDS[np.frombuffer(b"_/-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", np.uint8)] = _NAME
for _number, _sign in enumerate(_SIGNS, 1):
    _KINDS[ord(_sign)] = _number


def parse_plain_table(text: str, delimiter: str, is_special: Callable[[set[str]], bool]) -> Triples | None:
    """Parse a table in which every line has three names.

    Args:
        text: The text, with lines that end with LF.
        delimiter: An ASCII character.
        is_special: Whether some of the names need attention.

    Returns:
        The triples; None for any other table.
    """
    signs = np.array([ord(delimiter), ord(delimiter), ord("\n")], np.uint8)

    def split(chunk: str) -> list[str] | None:
        stored = np.frombuffer(chunk.encode(), np.uint8)
        found = stored[(stored == signs[0]) | (stored == signs[2])]
        if len(found) % 3 or (found.reshape(-1, 3) != signs).any():
            return None
        return chunk[:-1].replace("\n", delimiter).split(delimiter)

    atoms = _read(text, split, (1, 0))
    if atoms is None or is_special({*atoms.predicates, *atoms.constants}):
        return None
    return Triples(atoms, range(1, len(atoms) + 1), is_table=True)


def parse_plain_facts(text: str) -> Triples | None:
    """Parse facts in functional form, one a line, whose names are of ASCII letters, digits, `_`, `-` and `/`.

    None for any other text.
    """
    has_dots = text[: text.find("\n")].endswith(".")
    signs = np.array([1, 2, 3, 4, 5] if has_dots else [1, 2, 3, 5], np.uint8)
    end = ").\n" if has_dots else ")\n"

    def split(chunk: str) -> list[str] | None:
        kinds = _KINDS[np.frombuffer(chunk.encode(), np.uint8)]
        places = np.flatnonzero(kinds)
        if len(places) % len(signs):
            return None
        if (kinds[places].reshape(-1, len(signs)) != signs).any():
            return None
        # Names have at least one character, and nothing stands between the other signs.
        lengths = np.diff(places, prepend=-1).reshape(-1, len(signs)) - 1
        if not len(places) or lengths[:, :3].min() < 1 or lengths[:, 3:].any():
            return None
        return chunk[: -len(end)].replace(end, ",").replace("(", ",").split(",")

    atoms = _read(text, split, (0, 1))
    return None if atoms is None else Triples(atoms, range(1, len(atoms) + 1))


def _read(text: str, split: Callable[[str], list[str] | None], order: tuple[int, int]) -> AtomTable | None:
    """Return the atoms of a text, if each chunk splits into three names a line.

    order: the column of the predicate, and of the first of the two others
    """
    num = text.count("\n") + (not text.endswith("\n"))
    rows = np.empty((num, 3), np.int32)
    predicates, constants = Numbering(), Numbering()
    row = 0
    for chunk in _split_chunks(text):
        names = split(chunk)
        if names is None:
            return None
        end = row + len(names) // 3
        rows[row:end, 0] = predicates.number_all(names[order[0] :: 3])
        del names[order[0] :: 3]
        rows[row:end, 1:] = constants.number_all(names).reshape(-1, 2)
        row = end
    return AtomTable(tuple(predicates), tuple(constants), rows) if row == num else None


def _split_chunks(text: str) -> Iterator[str]:
    """Yield the text in parts that end with lines."""
    begin = 0
    while begin < len(text):
        end = text.find("\n", begin + _CHUNK) + 1 or len(text)
        chunk = text[begin:end]
        yield chunk if chunk.endswith("\n") else chunk + "\n"
        begin = end
