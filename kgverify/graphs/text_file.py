"""Text files for the readers: bytes with a digest, numbered lines, and errors that name a line."""

import hashlib
from importlib.resources.abc import Traversable
from typing import NamedTuple

from kgverify.errors import UserError
from kgverify.files.reading import read_file
from kgverify.program.program import Source

_SHOWN_CHARACTERS = 80


class TextFile(NamedTuple):
    """A file's name without its folder, its text without a byte order mark, and the sha256 of its bytes."""

    name: str
    text: str
    sha256: str


def read_text(file: Traversable) -> TextFile:
    """Read a file as UTF-8. UserError if it cannot be read, or at the line that is not UTF-8."""
    content = read_file(file, purpose="a file of the graph")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line_number = content.count(b"\n", 0, error.start) + 1
        raise line_error(
            Source(file.name, line_number),
            "UTF-8 text",
            f"the byte 0x{content[error.start]:02x}",
            "save the file in UTF-8",
        ) from error
    return TextFile(file.name, text.removeprefix("\ufeff"), hashlib.sha256(content).hexdigest())


def split_lines(text: str) -> list[tuple[int, str]]:
    """Split a text at LF and CRLF, and at nothing else, since names may hold any other separator; number lines from 1."""
    return [(i, line.removesuffix("\r")) for i, line in enumerate(text.split("\n"), 1)]


def is_skipped(line: str) -> bool:
    """Return whether a line is blank or a comment, which begins with `%` or `#`; one with a tab is a row of a table."""
    return "\t" not in line and (not line.strip() or line.lstrip(" ").startswith(("%", "#")))


def line_error(source: Source, expected: str, found: str, fix: str) -> UserError:
    """Return the error for a line, with what was expected and found there and how to fix it."""
    return UserError(f"expected {expected}, found {found}", where=str(source), fix=fix)


def show(text: str) -> str:
    """Return a text in quotes, cut to a length that fits an error message."""
    text = text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."
    return repr(text)
