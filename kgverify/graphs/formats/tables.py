"""Read tables of triples: one triple a line, its names separated by tabs, commas, semicolons, pipes or blanks.

The columns are head, relation, tail, unless a header row names another order. Nothing is guessed in silence: a header row,
row numbers, weights, blanks around names and empty last fields are skipped with a warning, and a table that can be
understood in two ways is refused.

Names survive exactly, but for blanks at their ends. Between commas, semicolons, pipes or blanks, a name may be in double
quotes, with a quote in it written twice. Between tabs quotes belong to the names, unless whole columns are in quotes. A line
that begins with `%` or `#` and a blank, or that has other than three fields, is a comment.
"""

import csv
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from kgverify.errors import UserError, count_of
from kgverify.graphs.formats.plain import parse_plain_table
from kgverify.graphs.formats.reading import Columns, GivenColumns, Triples
from kgverify.graphs.text_file import line_error, show
from kgverify.program.atoms import NamedAtom
from kgverify.program.program import Source

_NAMES: Final = {"\t": "<TAB>", ",": ",", ";": ";", "|": "|", " ": " "}
"""The delimiters, as errors show them."""
_SEPARATORS: Final = {"\t": "tabs", ",": "commas", ";": "semicolons", "|": "pipes", " ": "blanks"}
_SIGNS: Final = ("%", "#")
_SPECIAL_BEGINNINGS: Final = b" \"'%#"
"""The beginnings of names that need attention."""
_COMMENT: Final = re.compile(r"[ ]*[%#](?:[ \t%#!]|$)")
_NUM_SAMPLED: Final = 100
NUM_SAMPLED_LINES: Final = 10 * _NUM_SAMPLED
"""The lines that determine the delimiter."""

_ROLE_PATTERNS: Final = tuple(
    re.compile(f"(?:{words})(?:entity|node|type|label|name|id|uri|iri)*")
    for words in (
        "head|h|subject|subj|s|source|src|from|start|left|lhs|(?:entity|ent|e|node|arg)1",
        "relation|rel|r|predicate|pred|p|property|prop|edge|relationship|interaction|link|verb|label|type",
        "tail|t|object|obj|o|target|tgt|destination|dest|dst|to|end|right|rhs|(?:entity|ent|e|node|arg)2",
    )
)
"""The words of header rows for head, relation and tail, in lower-case letters and digits."""
_CERTAIN_RELATIONS: Final = ("relation", "predicate", "relationship", "property")
"""Names of the second of three columns by which a row is a header, whatever the other two are."""
_PANDAS_HEADER: Final = ["0", "1", "2"]
_NOT_ALPHANUMERIC: Final = re.compile(r"[^a-z0-9]")


class _Rows(NamedTuple):
    """The rows of a table and the line of each."""

    fields: list[tuple[str, ...]]
    lines: list[int]


def find_delimiter(texts: Sequence[str], file: str) -> str:
    """Return the delimiter of a table; an empty text for lines that are not a table.

    Tabs come first, since names do not hold them, and blanks last, since names do. UserError if two others fit equally well.
    """
    sample = [(i, text) for i, text in enumerate(texts[:NUM_SAMPLED_LINES], 1) if _is_content(text)][:_NUM_SAMPLED]
    rows = {each: [_split_line(text, each) for _, text in sample] for each in _NAMES}
    scores = {each: _score(rows[each]) for each in _NAMES}
    likely = [each for each in _NAMES if scores[each][0] and 2 * scores[each][0] >= len(sample)]
    if len(likely) < 2 or "\t" in likely:
        return next(iter(likely), "\t" if scores["\t"][0] else "")
    if any(field.count('"') % 2 for row in rows[" "] for field in row):
        likely = [each for each in likely if each != " "]  # Blanks cut names in quotes.
    best = max(scores[each] for each in likely)
    likely = [each for each in likely if scores[each] == best]
    # The delimiter is the one by which fewer different names are relations.
    num_relations = {each: len({row[1] for row in rows[each] if len(row) > 2}) for each in likely}
    likely.sort(key=lambda each: num_relations[each])
    if len(likely) > 1 and 2 * num_relations[likely[0]] > num_relations[likely[1]]:
        raise line_error(
            Source(file, sample[0][0]),
            "three names and what separates them",
            f"{_SEPARATORS[likely[0]]} or {_SEPARATORS[likely[1]]} in {show(sample[0][1])}",
            "separate the names by tabs, or put names that hold the other sign in double quotes",
        )
    return likely[0]


def _score(rows: Sequence[Sequence[str]]) -> tuple[int, bool]:
    """Return the number of rows that have the commonest length of at least 3, and whether this is 3, without empty ends."""
    widths = Counter(max((i for i, field in enumerate(row, 1) if i <= 3 or field.strip()), default=0) for row in rows)
    return max(((num, width == 3) for width, num in widths.items() if width >= 3), default=(0, False))


def parse_table(texts: Sequence[str], delimiter: str, file: str, given: GivenColumns | None = None) -> Triples:
    """Parse the lines of a table; `given` are its columns if it has no header row.

    UserError, with `file` and line, at the first line that is not a triple.
    """
    table = _Table(delimiter, file)
    rows, header = table.read_rows(texts)
    if given is None or not rows.fields:
        columns = table.find_columns(rows, header)
    else:
        columns, header = table.check_given(rows, header, given), None
    table.check_names(rows, columns)
    heads, relations, tails = ([row[column] for row in rows.fields] for column in columns)
    return Triples(
        tuple(map(NamedAtom, relations, heads, tails)), tuple(rows.lines), tuple(table.warnings), True, header
    )


def parse_plain(content: bytes, delimiter: str, first: str, given: GivenColumns | None = None) -> Triples | None:
    """Parse a table in which each line has three names and nothing needs attention; return None for any other table.

    content: the text in UTF-8, with lines that end with LF
    first:   the first line
    given:   the columns, if the user names them
    """
    fields = first.split(delimiter)
    if given is not None or delimiter == " " or _find_roles(fields) or _lacks_relation(fields):
        return None
    return parse_plain_table(content, delimiter, _SPECIAL_BEGINNINGS)


def _is_content(text: str) -> bool:
    return bool(text.strip(" \t\r\n")) and not _COMMENT.match(text)


def _split_line(text: str, delimiter: str) -> tuple[str, ...]:
    """Split a line; a line that is wrongly quoted is split at each delimiter, and not at all at blanks."""
    if '"' in text and delimiter != "\t":
        try:
            return next(_read_quoted([text], delimiter, '"'))
        except _Unquoted:
            if delimiter == " ":
                return (text,)
    return _split_plainly(text, delimiter)


def _split_plainly(text: str, delimiter: str) -> tuple[str, ...]:
    if delimiter == " ":
        return tuple(field for field in text.replace("\t", " ").split(" ") if field)
    return tuple(text.split(delimiter))


class _Unquoted(Exception):
    """A line with a quote that is not closed, or that ends inside of a name."""

    def __init__(self, row: int) -> None:
        """Set the row, counted from 0."""
        self.row = row


def _read_quoted(texts: Iterable[str], delimiter: str, quote: str) -> Iterator[tuple[str, ...]]:
    """Yield the fields of each line. Raise _Unquoted for a name that is not properly quoted or goes over a line's end."""
    lines = (text.replace("\t", " ") for text in texts) if delimiter == " " else texts
    reader = csv.reader(lines, delimiter=delimiter, quotechar=quote, strict=True, skipinitialspace=delimiter != "\t")
    row = 0
    try:
        for fields in reader:
            row += 1
            if reader.line_num != row:
                raise _Unquoted(row - 1)
            yield tuple(fields[:-1] if delimiter == " " and not fields[-1] else fields)
    except csv.Error as error:
        raise _Unquoted(row) from error


class _Table:
    """A table that is being read, with the warnings about it."""

    def __init__(self, delimiter: str, file: str) -> None:
        self._delimiter = delimiter
        self._file = file
        self._form = _NAMES[delimiter].join(("head", "relation", "tail"))
        self.warnings: list[str] = []

    def read_rows(self, texts: Sequence[str]) -> tuple[_Rows, Columns | None]:
        """Return the rows, all of the same length, and the columns that a header row calls head, relation and tail."""
        kept, lines, marked = self._drop_comments(texts)
        rows = _Rows(self._split(kept, lines), lines)
        self._drop_empty_fields(rows)
        self._strip(rows, kept)
        if not rows.fields:
            return rows, None
        self._check_widths(rows)
        rows, header = self._take_header(rows)
        self._check_marked(rows, marked)
        return rows, header

    def find_columns(self, rows: _Rows, header: Columns | None) -> Columns:
        """Return the columns of the names. UserError for a further column that is neither row numbers nor weights."""
        width = len(rows.fields[0]) if rows.fields else 3
        if width == 3:
            return header or (0, 1, 2)
        values = list(zip(*rows.fields, strict=True))
        numbered = _is_numbering(values[0])
        if header is None and width == 4:
            last_is_weight = _are_weights(values[3])
            columns = (1, 2, 3) if numbered and not last_is_weight else (0, 1, 2)
            is_clear = numbered != last_is_weight
        else:
            columns, is_clear = header or (0, 1, 2), header is not None
        for i in set(range(width)) - set(columns):
            if i == 0 and numbered:
                self._warn(rows.lines[0], "a column of row numbers, which is skipped")
            elif is_clear and _are_weights(values[i]):
                self._check_weights(rows.lines, values[i])
                self._warn(rows.lines[0], f"a column of weights, such as {values[i][0]}, which kgverify does not use")
            else:
                is_clear = False
        if not is_clear:
            raise self._error(
                rows.lines[0],
                self._form,
                f"{count_of(width, 'field')} in {self._show(rows.fields[0])}",
                "remove all columns but those of head, relation and tail, or name them: --graph columns=head,relation,tail,-",
            )
        return columns

    def check_given(self, rows: _Rows, header: Columns | None, given: GivenColumns) -> Columns:
        """Return the columns that the user names. UserError if the table has others."""
        columns, width = given
        found = count_of(len(rows.fields[0]), "field")
        if header not in (None, columns) or len(rows.fields[0]) != width:
            found = f"a header row with another order above {found}" if header else found
            fix = "leave columns out, or name the columns of this file, with - for one that is not read"
            raise self._error(
                rows.lines[0],
                f"the {width} columns of --graph columns",
                f"{found} in {self._show(rows.fields[0])}",
                fix,
            )
        return columns

    def check_names(self, rows: _Rows, columns: Columns) -> None:
        """Raise UserError for an empty name."""
        for i, row in enumerate(rows.fields):
            if "" in row and not all(row[column] for column in columns):
                raise self._error(
                    rows.lines[i], self._form, f"an empty name in {self._show(row)}", "fill in the empty field"
                )

    def _warn(self, line: int, text: str) -> None:
        self.warnings.append(f"{Source(self._file, line)}: {text}")

    def _error(self, line: int, expected: str, found: str, fix: str) -> UserError:
        return line_error(Source(self._file, line), expected, found, fix)

    def _show(self, row: Sequence[str]) -> str:
        return show(self._delimiter.join(row))

    def _drop_comments(self, texts: Sequence[str]) -> tuple[Sequence[str], list[int], set[int]]:
        """Return the lines that are neither blank nor comments, their numbers, and those that begin as comments do."""
        special = [i for i, text in enumerate(texts) if text[:1] in "%# \t"]
        dropped, marked, like_rows = set(), set(), []
        first = next((i for i, text in enumerate(texts) if _is_content(text)), len(texts))
        for i in special:
            text = texts[i].lstrip(" ")
            if not text.strip(" \t"):
                dropped.add(i)
            elif text.startswith(_SIGNS):
                fields = _split_line(text, self._delimiter)
                if i <= first and _find_roles(fields):
                    first = -1
                elif _COMMENT.match(text) or len(fields) != 3:
                    dropped.add(i)
                    like_rows += [i + 1] * (len(fields) == 3 and self._delimiter != " ")
                else:
                    marked.add(i + 1)
        if like_rows:
            num = count_of(len(like_rows), "comment")
            self._warn(like_rows[0], f"{num} with the form of a triple skipped, the first on this line")
        if not dropped:
            return texts, list(range(1, len(texts) + 1)), marked
        kept = [i for i in range(len(texts)) if i not in dropped]
        return [texts[i] for i in kept], [i + 1 for i in kept], marked

    def _check_marked(self, rows: _Rows, marked: set[int]) -> None:
        """Raise UserError for a row that may be a comment, if no other name of the table begins so."""
        if marked and not any(field.startswith(_SIGNS) for row in rows.fields for field in row[1:]):
            line, row = next((line, row) for line, row in zip(rows.lines, rows.fields, strict=True) if line in marked)
            raise self._error(
                line,
                "a triple or a comment",
                f"{self._show(row)}, which may be either",
                f"write a blank after the sign of a comment; write a triple as relation('{row[0]}',tail).",
            )

    def _split(self, texts: Sequence[str], lines: list[int]) -> list[tuple[str, ...]]:
        delimiter = self._delimiter
        has_quotes = any('"' in text for text in texts)
        if has_quotes and delimiter != "\t":
            try:
                return list(_read_quoted(texts, delimiter, '"'))
            except _Unquoted as error:
                raise self._error(
                    lines[error.row],
                    "a name in double quotes that ends at its quote, on the same line",
                    show(texts[error.row]),
                    'close the quote, and write a quote inside of a name twice: "say ""hi"""',
                ) from error
        rows = [_split_plainly(text, delimiter) for text in texts]
        if has_quotes:
            rows = self._unquote(rows, texts, lines, '"')
        if any("'" in text for text in texts):
            rows = self._unquote(rows, texts, lines, "'")
        return rows

    def _unquote(
        self, rows: list[tuple[str, ...]], texts: Sequence[str], lines: list[int], quote: str
    ) -> list[tuple[str, ...]]:
        """Return the rows without quotes if whole columns are in quotes; as they are if no name is.

        UserError if only some names of a column are in quotes, which may belong to them.
        """
        closed = [[len(field) > 1 and field[0] == quote == field[-1] for field in row] for row in rows]
        if not any(field[:1] == quote for row in rows for field in row):
            return rows
        try:
            unquoted = list(_read_quoted(texts, self._delimiter, quote))
        except _Unquoted:
            return rows
        # A quoted delimiter shows that quotes do not belong to the names; a doubled quote only that those around it do not.
        has_delimiter = any(len(row) != len(plain) for row, plain in zip(unquoted, rows, strict=True))
        first = 1 if _find_roles(unquoted[0]) else 0
        columns = zip(zip(*closed[first:], strict=False), zip(*rows[first:], strict=False), strict=True)
        if has_delimiter or all(
            all(column)
            or not any(is_closed and quote * 2 not in name[1:-1] for is_closed, name in zip(column, names, strict=True))
            for column, names in columns
        ):
            num = count_of(sum(map(sum, closed)), "name")
            line = next((line for line, row in zip(lines, closed, strict=True) if any(row)), lines[0])
            self._warn(line, f"the quotes around {num} removed, the first on this line")
            return unquoted
        row = next(i for i, each in enumerate(closed) if any(each))
        raise self._error(
            lines[row],
            "quotes around all names of a column, or around none",
            show(texts[row]),
            "remove the quotes; if they belong to the names, write the triples as relation(head,tail).",
        )

    def _drop_empty_fields(self, rows: _Rows) -> None:
        """Drop empty fields at the end of rows that have more than three."""
        long = [i for i, row in enumerate(rows.fields) if len(row) > 3 and not row[-1].strip(" ")]
        for i in long:
            while len(rows.fields[i]) > 3 and not rows.fields[i][-1].strip(" "):
                rows.fields[i] = rows.fields[i][:-1]
        if long and self._delimiter != " ":
            num = count_of(len(long), "line")
            self._warn(rows.lines[long[0]], f"{num} with an empty field at the end, the first here")

    def _strip(self, rows: _Rows, texts: Sequence[str]) -> None:
        """Remove the blanks around names."""
        candidates = [i for i, text in enumerate(texts) if " " in text] if self._delimiter != " " else []
        changed = [i for i in candidates if any(field[:1] == " " or field[-1:] == " " for field in rows.fields[i])]
        for i in changed:
            rows.fields[i] = tuple(field.strip(" ") for field in rows.fields[i])
        if changed:
            num = count_of(len(changed), "line")
            self._warn(rows.lines[changed[0]], f"blanks around names removed in {num}, the first here")

    def _check_widths(self, rows: _Rows) -> None:
        """Raise UserError at the first row that has more or fewer fields than the table has columns."""
        widths = Counter(map(len, rows.fields))
        expected = max(widths, key=lambda width: (width >= 3, widths[width], -width))
        if len(widths) == 1 and expected >= 3:
            return
        i = next(i for i, row in enumerate(rows.fields) if len(row) != expected or expected < 3)
        fix = f"separate three names by single {_SEPARATORS[self._delimiter]}, in every line of the file"
        if self._delimiter in ",;|":
            fix += "; put a name that holds one in double quotes"
        raise self._error(
            rows.lines[i],
            self._form if expected <= 3 else f"{expected} fields as in other lines",
            f"{count_of(len(rows.fields[i]), 'field')} in {self._show(rows.fields[i])}",
            fix,
        )

    def _take_header(self, rows: _Rows) -> tuple[_Rows, Columns | None]:
        """Return the rows without the header row and its repetitions, and the columns that it names."""
        header = rows.fields[0]
        columns = _find_roles(header)
        if columns is None:
            if not _lacks_relation(header) or any(
                row[0] == header[0] or row[1] == header[1] for row in rows.fields[1:]
            ):
                return rows, None
            _, ((head,), _, (tail,)) = _match_roles(header)
            columns = head, 3 - head - tail, tail
            if len(header) != 3 or all(_is_number(row[columns[1]]) for row in rows.fields[1:]):
                fix = "add a column with the relation of each row; without one this is no table of triples"
                raise self._error(rows.lines[0], "a header row with a relation", self._show(header), fix)
        kept = [i for i, row in enumerate(rows.fields) if row != header]
        head, relation, tail = columns
        if any(rows.fields[i][relation] == header[relation] for i in kept):
            return rows, None
        names = {rows.fields[i][column] for i in kept for column in (head, tail)}
        if header[head] in names or header[tail] in names:
            if header[relation].isdecimal():
                return rows, None
            raise self._error(
                rows.lines[0],
                "a header row or a triple",
                f"{self._show(header)}, which may be either",
                "remove the line if it is a header; if it is a triple, put it after another one",
            )
        num_more = len(rows.fields) - len(kept) - 1
        more = f", and {count_of(num_more, 'repetition')} of it" if num_more else ""
        self._warn(rows.lines[0], f"the header row {self._show(header)}{more} skipped")
        return _Rows([rows.fields[i] for i in kept], [rows.lines[i] for i in kept]), columns

    def _check_weights(self, lines: Sequence[int], weights: Sequence[str]) -> None:
        """Raise UserError for a weight by which the triple does not hold."""
        for line, weight in zip(lines, weights, strict=True):
            if float(weight) <= 0:
                raise self._error(
                    line, "a triple that holds", f"the weight {weight}", "remove such triples and the column"
                )


def _find_roles(fields: Sequence[str]) -> Columns | None:
    """Return the columns that a header row calls head, relation and tail; None for another row."""
    words, found = _match_roles(fields)
    if all(len(columns) == 1 for columns in found):
        (head,), (relation,), (tail,) = found
        return head, relation, tail
    if words[-3:] == _PANDAS_HEADER and words[:-3] in ([], [""]):
        return len(words) - 3, len(words) - 2, len(words) - 1
    return (0, 1, 2) if len(words) == 3 and words[1] in _CERTAIN_RELATIONS else None


def _lacks_relation(fields: Sequence[str]) -> bool:
    """Return whether a row has the form of a header row that names a head and a tail, in whole words, and no relation."""
    words, (heads, relations, tails) = _match_roles(fields)
    return len(heads) == len(tails) == 1 and not relations and min(len(words[heads[0]]), len(words[tails[0]])) > 2


def _match_roles(fields: Sequence[str]) -> tuple[list[str], list[list[int]]]:
    """Return the words of a row, and the columns that they call head, relation and tail."""
    words = [_NOT_ALPHANUMERIC.sub("", field.lower()) for field in fields]
    return words, [[i for i, word in enumerate(words) if pattern.fullmatch(word)] for pattern in _ROLE_PATTERNS]


def _is_numbering(values: Sequence[str]) -> bool:
    """Return whether the values count from 0 or 1."""
    return values[0] in ("0", "1") and all(value == str(i) for i, value in enumerate(values, int(values[0])))


def _are_weights(values: Sequence[str]) -> bool:
    """Return whether the values are numbers: some with decimals, or all of them 1, 0 or -1. Others may be dates."""
    if not all(map(_is_number, values)):
        return False
    numbers = [float(value) for value in values]
    return all(map(math.isfinite, numbers)) and (
        any("." in value or "e" in value.lower() for value in values) or set(numbers) <= {1.0, 0.0, -1.0}
    )


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True
