"""Read tables of triples: one triple per line, its names separated by tabs, commas, semicolons, pipes or blanks.

The columns are head, relation, tail, unless a header row names another order. Nothing is guessed silently: a header row, row
numbers, weights, blanks around names and empty last fields are skipped with a warning, and an ambiguous table is refused.

Names are kept exactly, except for blanks at their ends. Between commas, semicolons, pipes or blanks, a name may be in double
quotes, with a quote in it written twice. Between tabs, quotes belong to the names, unless whole columns are in quotes. A line
that begins with `%` or `#` is a comment if a blank follows, or if the line does not have three fields.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Final

from kgverify.errors import count_of
from kgverify.graphs.formats.fields import NAMES, SEPARATORS, SIGNS, TableRows, find_ends, find_roles
from kgverify.graphs.formats.plain import parse_plain_table
from kgverify.graphs.formats.reading import Columns, GivenColumns, Triples
from kgverify.program.atoms import NamedAtom

_SPECIAL_BEGINNINGS: Final = b" \"'%#"
"""The beginnings of names that need attention."""
_COLUMNS: Final = (
    "remove all columns but those of head, relation and tail, or name them: --graph columns=head,relation,tail,-"
)


def parse_table(texts: Sequence[str], delimiter: str, file: str, given: GivenColumns | None = None) -> Triples:
    """Parse the lines of a table; `given` are its columns if it has no header row.

    UserError, with `file` and line, at the first line that is not a triple.
    """
    table = _Table(texts, delimiter, file)
    columns = table.find_columns(given)
    heads, relations, tails = ([row[column] for row in table.rows] for column in columns)
    header = None if given is not None and table.rows else table.header
    atoms = tuple(map(NamedAtom, relations, heads, tails))
    return Triples(atoms, tuple(table.lines), tuple(table.warnings), True, header)


def parse_plain(content: bytes, delimiter: str, first: str, given: GivenColumns | None = None) -> Triples | None:
    """Parse a table in which each line has three names and nothing needs attention; return None for any other table.

    content: the text in UTF-8, with lines that end with LF
    first:   the first line
    given:   the columns, if the user names them
    """
    fields = first.split(delimiter)
    if given is not None or delimiter == " " or find_roles(fields) or find_ends(fields):
        return None
    return parse_plain_table(content, delimiter, _SPECIAL_BEGINNINGS)


class _Table(TableRows):
    """A table whose rows have the same number of fields.

    header: the columns that a header row calls head, relation and tail; None without a header row
    """

    header: Columns | None = None

    def __init__(self, texts: Sequence[str], delimiter: str, file: str) -> None:
        super().__init__(texts, delimiter, file)
        self._form = NAMES[delimiter].join(("head", "relation", "tail"))
        if self.rows:
            self._check_widths()
            self._take_header()
            self._check_marked()

    def find_columns(self, given: GivenColumns | None) -> Columns:
        """Return the columns of the names. UserError for an empty name, and for a column whose meaning is unclear.

        given: the columns as the user names them
        """
        if not self.rows:
            return 0, 1, 2
        columns = self._explain_columns() if given is None else self._check_given(*given)
        for i, row in enumerate(self.rows):
            if "" in row and not all(row[column] for column in columns):
                raise self.error(i, self._form, f"an empty name in {self.show(row)}", "fill in the empty field")
        return columns

    def _explain_columns(self) -> Columns:
        """Return the columns of the names. UserError for an extra column that contains neither row numbers nor weights."""
        width = len(self.rows[0])
        if width == 3:
            return self.header or (0, 1, 2)
        values = list(zip(*self.rows, strict=True))
        numbers = [0] if _is_numbering(values[0]) else []
        layouts = [self.header] if self.header else []
        if self.header is None and width == 4:
            layouts = [(1, 2, 3)] * len(numbers) + [(0, 1, 2)] * _are_weights(values[3])
        others = {*range(width)}.difference(*layouts)
        if len(layouts) != 1 or not all(i in numbers or _are_weights(values[i]) for i in others):
            found = f"{count_of(width, 'field')} in {self.show(self.rows[0])}"
            raise self.error(0, self._form, found, _COLUMNS)
        for i in others:
            if i in numbers:
                self.warn("a column of row numbers, which is skipped")
                continue
            for row, weight in enumerate(values[i]):
                if float(weight) <= 0:
                    fix = "remove such triples and the column"
                    raise self.error(row, "a triple that holds", f"the weight {weight}", fix)
            self.warn(f"a column of weights, such as {values[i][0]}, which kgverify does not use")
        return layouts[0]

    def _check_given(self, columns: Columns, width: int) -> Columns:
        """Return the columns that the user names. UserError if the table has other columns."""
        found = count_of(len(self.rows[0]), "field")
        if self.header not in (None, columns) or len(self.rows[0]) != width:
            found = f"a header row with another order above {found}" if self.header else found
            fix = "leave columns out, or name the columns of this file, with - for one that is not read"
            expected = f"the {width} columns of --graph columns"
            raise self.error(0, expected, f"{found} in {self.show(self.rows[0])}", fix)
        return columns

    def _check_marked(self) -> None:
        """Raise UserError for a row that may be a comment, if no other name in the table begins the same way."""
        if self.marked and not any(field.startswith(SIGNS) for row in self.rows for field in row[1:]):
            i = next(i for i, line in enumerate(self.lines) if line in self.marked)
            fix = f"write a blank after the sign of a comment; write a triple as relation('{self.rows[i][0]}',tail)."
            found = f"{self.show(self.rows[i])}, which may be either"
            raise self.error(i, "a triple or a comment", found, fix)

    def _check_widths(self) -> None:
        """Raise UserError at the first row that has more or fewer fields than the table has columns."""
        widths = Counter(map(len, self.rows))
        expected = max(widths, key=lambda width: (width >= 3, widths[width], -width))
        if len(widths) == 1 and expected >= 3:
            return
        i, row = next((i, row) for i, row in enumerate(self.rows) if len(row) != expected or expected < 3)
        fix = f"separate three names by single {SEPARATORS[self.delimiter]}, in every line of the file"
        fix += "; put a name that holds one in double quotes" * (self.delimiter in ",;|")
        form = self._form if expected <= 3 else f"{expected} fields as in other lines"
        raise self.error(i, form, f"{count_of(len(row), 'field')} in {self.show(row)}", fix)

    def _take_header(self) -> None:
        """Drop the header row and its repetitions, and note the columns that it names."""
        header = self.rows[0]
        columns = find_roles(header) or self._guess_columns(header)
        if columns is None:
            return
        head, relation, tail = columns
        kept = [i for i, row in enumerate(self.rows) if row != header]
        if any(self.rows[i][relation] == header[relation] for i in kept):
            return
        if not {header[head], header[tail]}.isdisjoint(self.rows[i][column] for i in kept for column in (head, tail)):
            if header[relation].isdecimal():
                return
            fix = "remove the line if it is a header; if it is a triple, put it after another one"
            raise self.error(0, "a header row or a triple", f"{self.show(header)}, which may be either", fix)
        num_more = len(self.rows) - len(kept) - 1
        more = f", and {count_of(num_more, 'repetition')} of it" if num_more else ""
        self.warn(f"the header row {self.show(header)}{more} skipped")
        self.header, self.rows, self.lines = columns, [self.rows[i] for i in kept], [self.lines[i] for i in kept]

    def _guess_columns(self, header: Sequence[str]) -> Columns | None:
        """Return the columns of a header row that names a head and a tail; None for any other row.

        UserError if no column can be the relation.
        """
        ends, others = find_ends(header), self.rows[1:]
        if ends is None or any(row[0] == header[0] or row[1] == header[1] for row in others):
            return None
        relation = 3 - sum(ends)
        if len(header) != 3 or all(_is_number(row[relation]) for row in others):
            fix = "add a column with the relation of each row; without one this is no table of triples"
            raise self.error(0, "a header row with a relation", self.show(header), fix)
        return ends[0], relation, ends[1]


def _is_numbering(values: Sequence[str]) -> bool:
    """Return whether the values count from 0 or 1."""
    return values[0] in ("0", "1") and all(value == str(i) for i, value in enumerate(values, int(values[0])))


def _are_weights(values: Sequence[str]) -> bool:
    """Return whether the values are numbers, some with decimals, or are all 1, 0 or -1. Other numbers may be dates."""
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
