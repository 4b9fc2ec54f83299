"""Support for the readers of graphs: text with a digest, numbered lines, errors that name a line, and the readers' results.

It also contains a user's choices about ambiguous files.
"""

import codecs
import hashlib
from collections.abc import Sequence
from importlib.resources.abc import Traversable
from typing import Final, NamedTuple, TypeAlias, TypedDict

from kgverify.errors import UserError, suggest
from kgverify.files.reading import decompress, read_file
from kgverify.program.atoms import NamedAtom
from kgverify.program.program import Source

_SHOWN_CHARACTERS = 80
_MAX_LINE_BYTES: Final = 16 << 20
"""The maximum number of bytes in a line: a domain may list all its constants on one line."""
_MARK: Final = "\ufeff".encode()
_BINARY: Final = {
    b"PAR1": "Parquet",
    b"ARROW1": "Arrow",
    b"\x89HDF": "HDF5",
    b"\x80\x04": "pickle",
    b"\x80\x05": "pickle",
}
"""The first bytes of binary table files, and the names of their formats."""


class TextFile(NamedTuple):
    """A file's name without its folder, its text in UTF-8 without a byte order mark, and the sha256 of its bytes."""

    name: str
    content: bytes
    sha256: str

    @property
    def text(self) -> str:
        """The text."""
        return self.content.decode()


def read_text(file: Traversable, *, standard_input: bool = False, purpose: str = "a file of the graph") -> TextFile:
    """Read a file as UTF-8, or UTF-16 if it begins with its mark; packed files are unpacked.

    Args:
        file: The file, or a resource of a package.
        standard_input: Whether the user typed the path: then `-` is standard input.
        purpose: What the file should be, for errors.

    Raises:
        UserError: The file cannot be read or unpacked, or a line is not text.
    """
    stored = read_file(file, purpose=purpose, standard_input=standard_input)
    content = decompress(stored, where=str(file))
    if binary := next((name for start, name in _BINARY.items() if content.startswith(start)), None):
        fix = "write its table as text with tabs, such as by pandas's `to_csv(path, sep='\\t', index=False)`"
        raise UserError(f"expected UTF-8 text, found {binary}", where=file.name, fix=fix)
    _check_lines(content, file.name)
    return TextFile(file.name, _check_text(content, file.name), hashlib.sha256(stored).hexdigest())


def _check_lines(content: bytes, file: str) -> None:
    """Raise a UserError for a line so long that it takes seconds to read."""
    begin = 0
    while begin + _MAX_LINE_BYTES < len(content):
        bounds = begin, begin + _MAX_LINE_BYTES
        end = max(content.rfind(b"\n", *bounds), content.rfind(b"\r", *bounds))
        if end < 0:
            line_number = content.count(b"\n", 0, begin) + 1
            found = f"one of more than {_MAX_LINE_BYTES:,} bytes"
            raise line_error(Source(file, line_number), "a shorter line", found, "check that the file is a text")
        begin = end + 1


def _check_text(content: bytes, file: str) -> bytes:
    """Return a text in UTF-8 without byte order marks. UserError, with the line, if it is not text."""
    is_ascii = content.isascii()
    encoding = "utf-16" if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8"
    try:
        if not is_ascii:
            decoded = content.decode(encoding)
            content = content if encoding == "utf-8" else decoded.encode()
    except UnicodeDecodeError as error:
        line_number = max(1, len(split_text(content[: error.start].decode(encoding, "replace") + "|")))
        found = f"the byte 0x{content[error.start]:02x}"
        raise line_error(Source(file, line_number), "UTF-8 text", found, "save the file in UTF-8") from error
    if (position := content.find(b"\0")) >= 0:
        line_number = len(split_text(content[: position + 1].decode()))
        raise line_error(Source(file, line_number), "text", "the character NUL", "save the file as text in UTF-8")
    # In concatenated files, each begins with a mark.
    return content if is_ascii else content.removeprefix(_MARK).replace(b"\n" + _MARK, b"\n")


def split_text(text: str) -> list[str]:
    """Split a text at LF, CRLF and CR only, since names may contain any other separator."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text.removesuffix("\n").split("\n") if text else []


def split_lines(text: str) -> list[tuple[int, str]]:
    """Split a text as `split_text` does, and number the lines from 1."""
    return list(enumerate(split_text(text), 1))


def is_skipped(line: str) -> bool:
    """Return whether a line is blank or a comment, which begins with `%` or `#`; a line with a tab is a row of a table."""
    return "\t" not in line and (not line.strip() or line.lstrip(" ").startswith(("%", "#")))


def line_error(source: Source, expected: str, found: str, fix: str) -> UserError:
    """Return the error for a line, with what was expected and found there and how to fix it."""
    return UserError(f"expected {expected}, found {found}", where=str(source), fix=fix)


def show(text: str) -> str:
    """Return a text in quotes, cut to fit an error message."""
    text = text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."
    return repr(text)


Columns: TypeAlias = tuple[int, int, int]
"""The columns of head, relation and tail in a table; 0 is the first."""

GivenColumns: TypeAlias = tuple[Columns, int]
"""The user's columns for a table without a header row, and the total number of columns."""


class Triples(NamedTuple):
    """The triples of a file as ground atoms, in file order, and the line of each.

    warnings: what was skipped, each with file and line
    is_table: whether the file is a table, whose columns only a header row names
    header:   the columns that the header row names; None without a header row
    """

    atoms: Sequence[NamedAtom]
    lines: Sequence[int]
    warnings: tuple[str, ...] = ()
    is_table: bool = False
    header: Columns | None = None


class Part(NamedTuple):
    """The triples of a split from a file, or from an object without a file name."""

    split: str
    file: str
    triples: Triples


RULE_VARIABLES: Final = ("format", "graph")
_COLUMNS: Final = ("head", "relation", "tail")
_UNREAD: Final = "-"


class ReadingOptions(TypedDict, total=False):
    """The options of `load_graph` for reading files."""

    rule_variables: str | None
    skip_rules: bool
    columns: str | None


class Reading(NamedTuple):
    """The choices of a user about the files of a graph.

    rule_variables: the meaning of a name in a rule that is a variable by its format and a constant of the graph: `format`
                    reads it as the variable, `graph` as the constant, and None refuses it
    skip_rules:     whether rules that cannot be used are left out
    columns:        the columns of tables without a header row, such as `head,tail,relation`; `-` is a column that is not read
    """

    rule_variables: str | None = None
    skip_rules: bool = False
    columns: str | None = None

    def check(self) -> None:
        """Raise UserError for an invalid option value."""
        if self.rule_variables not in (None, *RULE_VARIABLES):
            raise UserError(
                f"expected {' or '.join(RULE_VARIABLES)}, found {self.rule_variables!r}",
                where="rule_variables",
                fix=suggest(self.rule_variables, RULE_VARIABLES)
                or "give format for the variables of the format, graph for the constants of the graph",
            )
        if self.columns is not None:
            self.find_columns()

    def find_columns(self) -> GivenColumns | None:
        """Return the columns of head, relation and tail, and the number of all columns; None if they are not given."""
        if self.columns is None:
            return None
        names = [name.strip() for name in self.columns.split(",")]
        if sorted(name for name in names if name != _UNREAD) != sorted(_COLUMNS):
            raise UserError(
                f"expected the names head, relation and tail, once each, found {self.columns!r}",
                where="columns",
                fix="give them in the order of the file, such as head,tail,relation; write - for each other column",
            )
        head, relation, tail = map(names.index, _COLUMNS)
        return (head, relation, tail), len(names)


AS_WRITTEN: Final = Reading()
"""The default: files are read as their formats say, and ambiguous files are refused."""
