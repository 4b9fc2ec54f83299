"""A table in a terminal, or something else where it is too narrow for the table."""

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult  # noqa: TID251  the type in rich's protocol
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text as AnyText  # noqa: TID251  the type of cells, which are escaped before

from kgverify.escaping import make_visible
from kgverify.report.render.screen import Text

_WIDE: Final = 1000


class FittedTable:
    """A table if none of its cells is folded, else another form of it.

    may_fold: whether cells may be folded between words; then the other form is for widths at which a word would be cut
    notes:    the text below each row of a table whose cells may not be folded, if any
    """

    def __init__(
        self,
        table: Table,
        otherwise: RenderableType,
        *,
        may_fold: bool = False,
        notes: Sequence[RenderableType | None] = (),
    ) -> None:
        self._table, self._otherwise, self._may_fold, self._notes = table, otherwise, may_fold, notes

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table, or the other form."""
        # On a console that is wide enough for anything.
        width = Measurement.get(console, options.update_width(_WIDE), self._table)
        least = width.minimum if self._may_fold else width.maximum
        if least > options.max_width:
            yield self._otherwise
        elif not any(self._notes):
            yield self._table
        else:
            # No cell is folded, so that each row is one line, after that of the headings.
            heading, *rows = console.render_lines(self._table, options, pad=False)
            for row, note in ((heading, None), *zip_longest(rows, self._notes)):
                yield from (*row, Segment.line())
                if note is not None:
                    yield Padding(note, (0, 0, 0, 2))


def fit_rows(table: Table, rows: Iterable[Sequence[str | AnyText]], styles: Sequence[str] = ()) -> FittedTable:
    """Fill a table whose columns have titles. Where it is too narrow, each row becomes a list of titles and values.

    Args:
        table:  a table with its columns and without rows.
        rows:   the cells of each row; the first cell names the row.
        styles: the style of each row, none if empty.
    """
    titles = [column.header for column in table.columns]
    for column in table.columns:
        column.overflow = "fold"
    listed: list[RenderableType] = [Text(str(table.title).strip("\n"), "table.title")] if table.title else []
    for i, row in enumerate(rows):
        style = styles[i] if styles else ""
        table.add_row(*row, style=style)
        name, *cells = (Text(make_visible(each)) if isinstance(each, str) else each for each in row)
        values = Table.grid(padding=(0, 1))
        values.add_column(no_wrap=True, style="dim")
        values.add_column(overflow="fold")
        for title, cell in zip(titles[1:], cells, strict=True):
            if cell.plain:
                values.add_row(title, cell)
        listed += [name, Padding(values, (0, 0, 0, 2), style=style, expand=False)]
    return FittedTable(table, Group(*listed), may_fold=True)
