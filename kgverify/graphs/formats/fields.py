"""Tables as rows of fields: their delimiter, quotes and comments, and the columns that a header row names."""

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from typing import Final

from kgverify.errors import UserError, count_of
from kgverify.graphs.formats.reading import Columns, line_error, show
from kgverify.program.program import Source

NAMES: Final = {"\t": "<TAB>", ",": ",", ";": ";", "|": "|", " ": " "}
"""The delimiters, as error messages show them."""
SEPARATORS: Final = {"\t": "tabs", ",": "commas", ";": "semicolons", "|": "pipes", " ": "blanks"}
SIGNS: Final = ("%", "#")
COMMENT: Final = re.compile(r"[ ]*[%#](?:[ \t%#!]|$)")
_NUM_SAMPLED: Final = 100
NUM_SAMPLED_LINES: Final = 10 * _NUM_SAMPLED
"""The number of lines that determine the delimiter."""


def find_delimiter(texts: Sequence[str], file: str) -> str:
    """Return the delimiter of a table; an empty text if the lines are not a table.

    Tabs come first, since names do not contain them, and blanks last, since names may contain them. UserError if two others
    fit equally well.
    """
    sample = [(i, text) for i, text in enumerate(texts[:NUM_SAMPLED_LINES], 1) if is_content(text)][:_NUM_SAMPLED]
    rows = {each: [split_line(text, each) for _, text in sample] for each in NAMES}
    scores = {each: _score(rows[each]) for each in NAMES}
    likely = [each for each in NAMES if scores[each][0] and 2 * scores[each][0] >= len(sample)]
    if len(likely) < 2 or "\t" in likely:
        return next(iter(likely), "\t" if scores["\t"][0] else "")
    if any(field.count('"') % 2 for row in rows[" "] for field in row):
        scores[" "] = (0, False)  # Blanks would split quoted names.
    best = max(scores[each] for each in likely)
    # Choose the delimiter that gives fewer distinct relations.
    fitting = (each for each in likely if scores[each] == best)
    first, *others = sorted(fitting, key=lambda each: _count_relations(rows[each]))
    if others and 2 * _count_relations(rows[first]) > _count_relations(rows[others[0]]):
        raise line_error(
            Source(file, sample[0][0]),
            "three names and what separates them",
            f"{SEPARATORS[first]} or {SEPARATORS[others[0]]} in {show(sample[0][1])}",
            "separate the names by tabs, or put names that hold the other sign in double quotes",
        )
    return first


def _count_relations(rows: Sequence[Sequence[str]]) -> int:
    return len({row[1] for row in rows if len(row) > 2})


def _score(rows: Sequence[Sequence[str]]) -> tuple[int, bool]:
    """Count the rows of the most common length of at least 3, and return whether it is 3 without empty fields at the ends."""
    widths = Counter(max((i for i, field in enumerate(row, 1) if i <= 3 or field.strip()), default=0) for row in rows)
    return max(((num, width == 3) for width, num in widths.items() if width >= 3), default=(0, False))


def is_content(text: str) -> bool:
    """Return whether a line is neither blank nor a comment."""
    return bool(text.strip(" \t\r\n")) and not COMMENT.match(text)


def split_line(text: str, delimiter: str) -> tuple[str, ...]:
    """Split a line. Split a wrongly quoted line at each delimiter, but leave it whole if blanks are the delimiter."""
    if '"' in text and delimiter != "\t":
        try:
            return next(read_quoted([text], delimiter, '"'))
        except Unquoted:
            if delimiter == " ":
                return (text,)
    return split_plainly(text, delimiter)


def split_plainly(text: str, delimiter: str) -> tuple[str, ...]:
    """Split a line at each delimiter, whatever its quotes."""
    if delimiter == " ":
        return tuple(field for field in text.replace("\t", " ").split(" ") if field)
    return tuple(text.split(delimiter))


class Unquoted(Exception):
    """A line with a quote that is not closed, or that is closed inside a name; with its row, counted from 0."""


def read_quoted(texts: Iterable[str], delimiter: str, quote: str) -> Iterator[tuple[str, ...]]:
    """Yield the fields of each line. Raise Unquoted for a name that is not properly quoted or continues on the next line."""
    lines = (text.replace("\t", " ") for text in texts) if delimiter == " " else texts
    reader = csv.reader(lines, delimiter=delimiter, quotechar=quote, strict=True, skipinitialspace=delimiter != "\t")
    row = -1
    try:
        for row, fields in enumerate(reader):
            if reader.line_num != row + 1:
                raise Unquoted(row)
            yield tuple(fields[:-1] if delimiter == " " and not fields[-1] else fields)
    except csv.Error as error:
        raise Unquoted(row + 1) from error


def read_rows(texts: Sequence[str]) -> list[tuple[str, ...]]:
    """Split the lines of a table below a header row at the first sign of `NAMES` in it. Raise Unquoted for a bad quote."""
    delimiter = next((each for each in NAMES if each in texts[0]), "\t")
    return (
        [split_plainly(text, delimiter) for text in texts]
        if delimiter == "\t"
        else [*read_quoted(texts, delimiter, '"')]
    )


_ROLE_PATTERNS: Final = tuple(
    re.compile(f"(?:{words})(?:entity|node|type|label|name|id|uri|iri)*")
    for words in (
        "head|h|subject|subj|s|source|src|from|start|left|lhs|(?:entity|ent|e|node|arg)1",
        "relation|rel|r|predicate|pred|p|property|prop|edge|relationship|interaction|link|verb|label|type",
        "tail|t|object|obj|o|target|tgt|destination|dest|dst|to|end|right|rhs|(?:entity|ent|e|node|arg)2",
    )
)
"""The words for head, relation and tail in header rows, reduced to lower-case letters and digits."""
_CERTAIN_RELATIONS: Final = ("relation", "predicate", "relationship", "property")
"""Names of the second of three columns that make a row a header, whatever the other two are."""
_PANDAS_HEADER: Final = ["0", "1", "2"]
_NOT_ALPHANUMERIC: Final = re.compile(r"[^a-z0-9\n]")


def find_roles(fields: Sequence[str]) -> Columns | None:
    """Return the columns that a header row calls head, relation and tail; None for another row."""
    words, found = _match_roles(fields)
    if all(len(columns) == 1 for columns in found):
        (head,), (relation,), (tail,) = found
        return head, relation, tail
    if words[-3:] == _PANDAS_HEADER and words[:-3] in ([], [""]):
        return len(words) - 3, len(words) - 2, len(words) - 1
    return (0, 1, 2) if len(words) == 3 and words[1] in _CERTAIN_RELATIONS else None


def find_ends(fields: Sequence[str]) -> tuple[int, int] | None:
    """Return the columns that a row calls head and tail, in whole words, if it calls no column the relation; else None."""
    words, (heads, relations, tails) = _match_roles(fields)
    if len(heads) != 1 or len(tails) != 1 or relations or min(len(words[heads[0]]), len(words[tails[0]])) < 3:
        return None
    return heads[0], tails[0]


def _match_roles(fields: Sequence[str]) -> tuple[list[str], list[list[int]]]:
    """Return the words of a row, and the columns that they call head, relation and tail."""
    words = _NOT_ALPHANUMERIC.sub("", "\n".join(fields).lower()).split("\n")
    fitting = [set(filter(pattern.fullmatch, set(words))) for pattern in _ROLE_PATTERNS]
    return words, [[i for i, word in enumerate(words) if word in each] if each else [] for each in fitting]


class TableRows:
    """The rows of a table: the fields and the line of each, and warnings about what was skipped.

    marked: the lines that begin like comments
    """

    def __init__(self, texts: Sequence[str], delimiter: str, file: str) -> None:
        self.delimiter, self.file = delimiter, file
        self.warnings: list[str] = []
        self.marked = self._find_lines(texts)
        texts = texts if len(self.lines) == len(texts) else [texts[line - 1] for line in self.lines]
        self.rows = self._split(texts)
        self._clean(texts)

    def warn(self, text: str, row: int = 0) -> None:
        """Add a warning about a row."""
        self.warnings.append(f"{Source(self.file, self.lines[row])}: {text}")

    def error(self, row: int, expected: str, found: str, fix: str) -> UserError:
        """Return the error for a row."""
        return line_error(Source(self.file, self.lines[row]), expected, found, fix)

    def show(self, row: Sequence[str]) -> str:
        """Return a row in quotes, as it is written."""
        return show(self.delimiter.join(row))

    def _find_lines(self, texts: Sequence[str]) -> set[int]:
        """Find the lines that are neither blank nor comments, and return those that begin like comments."""
        dropped, marked, like_rows = set(), set(), []
        first = next((i for i, text in enumerate(texts) if is_content(text)), len(texts))
        for i in [i for i, text in enumerate(texts) if text[:1] in "%# \t"]:
            text = texts[i].lstrip(" ")
            fields = split_line(text, self.delimiter)
            if not text.strip(" \t"):
                dropped.add(i)
            elif not text.startswith(SIGNS):
                continue
            elif i <= first and find_roles(fields):
                first = -1
            elif COMMENT.match(text) or len(fields) != 3:
                dropped.add(i)
                like_rows += [i] * (len(fields) == 3 and self.delimiter != " ")
            else:
                marked.add(i + 1)
        self.lines = [*range(1, len(texts) + 1)]
        if like_rows:
            num = count_of(len(like_rows), "comment")
            self.warn(f"{num} with the form of a triple skipped, the first on this line", like_rows[0])
        if dropped:
            self.lines = [line for line in self.lines if line - 1 not in dropped]
        return marked

    def _split(self, texts: Sequence[str]) -> list[tuple[str, ...]]:
        quotes = [quote for quote in "\"'" if any(quote in text for text in texts)]
        if '"' in quotes and self.delimiter != "\t":
            try:
                return list(read_quoted(texts, self.delimiter, '"'))
            except Unquoted as error:
                expected = "a name in double quotes that ends at its quote, on the same line"
                fix = 'close the quote, and write a quote inside of a name twice: "say ""hi"""'
                raise self.error(error.args[0], expected, show(texts[error.args[0]]), fix) from error
        rows = [split_plainly(text, self.delimiter) for text in texts]
        for quote in quotes:
            rows = self._unquote(rows, texts, quote)
        return rows

    def _unquote(self, rows: list[tuple[str, ...]], texts: Sequence[str], quote: str) -> list[tuple[str, ...]]:
        """Remove the quotes if whole columns are in quotes. Return the rows as they are if no name is in quotes.

        UserError if only some names of a column are in quotes, since the quotes may belong to the names.
        """
        if not any(field[:1] == quote for row in rows for field in row):
            return rows
        try:
            unquoted = list(read_quoted(texts, self.delimiter, quote))
        except Unquoted:
            return rows
        closed = [[len(field) > 1 and field[0] == quote == field[-1] for field in row] for row in rows]
        first = next((i for i, row in enumerate(closed) if any(row)), 0)
        # A quoted delimiter shows that no quotes belong to names; a doubled quote shows it only for the quotes around it.
        is_clear = any(len(row) != len(plain) for row, plain in zip(unquoted, rows, strict=True))
        body = slice(find_roles(unquoted[0]) is not None, None)
        for column, names in zip(zip(*closed[body], strict=False), zip(*rows[body], strict=False), strict=True):
            if is_clear or all(column) or all(quote * 2 in name[1:-1] for name in compress(names, column)):
                continue
            expected = "quotes around all names of a column, or around none"
            fix = "remove the quotes; if they belong to the names, write the triples as relation(head,tail)."
            raise self.error(first, expected, show(texts[first]), fix)
        self.warn(f"the quotes around {count_of(sum(map(sum, closed)), 'name')} removed, the first on this line", first)
        return unquoted

    def _clean(self, texts: Sequence[str]) -> None:
        """Drop empty fields at the ends of rows that have more than three, and the blanks around names."""
        is_blank = self.delimiter == " "
        long = [i for i, row in enumerate(self.rows) if len(row) > 3 and not row[-1].strip(" ")]
        for i in long:
            width = max([3, *(num for num, field in enumerate(self.rows[i], 1) if field.strip(" "))])
            self.rows[i] = self.rows[i][:width]
        if long and not is_blank:
            self.warn(f"{count_of(len(long), 'line')} with an empty field at the end, the first here", long[0])
        spaced = [] if is_blank else [i for i, text in enumerate(texts) if " " in text]
        changed = [i for i in spaced if any(field[:1] == " " or field[-1:] == " " for field in self.rows[i])]
        for i in changed:
            self.rows[i] = tuple(field.strip(" ") for field in self.rows[i])
        if changed:
            self.warn(f"blanks around names removed in {count_of(len(changed), 'line')}, the first here", changed[0])
