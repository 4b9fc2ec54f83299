"""A table in a terminal, or a list of titles and values where it is too narrow for the table."""

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
_SIDES: Final = ["expected", "actual"]


class FittedTable:
    """A table, or a list of titles and values for each row where a cell would be cut.

    table:    a table with its columns and without rows
    rows:     the cells of each row; the first cell names the row
    may_fold: whether cells may be folded between words
    styles:   the style of each row, none if empty
    notes:    the text below each row of a table whose cells may not be folded, if any
    """

    def __init__(
        self,
        table: Table,
        rows: Iterable[Sequence[str | AnyText]],
        *,
        may_fold: bool = True,
        styles: Sequence[str] = (),
        notes: Sequence[AnyText | None] = (),
    ) -> None:
        self._table, self._may_fold, self._styles, self._notes = table, may_fold, styles, notes
        self._rows = [[Text(make_visible(each)) if isinstance(each, str) else each for each in row] for row in rows]
        for column in table.columns:
            column.overflow = "fold"
            column.no_wrap = column.no_wrap or not may_fold
        for row, style in zip_longest(self._rows, styles):
            table.add_row(*row, style=style)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table, or the list."""
        # On a console that is wide enough for anything.
        width = Measurement.get(console, options.update_width(_WIDE), self._table)
        if (width.minimum if self._may_fold else width.maximum) > options.max_width:
            yield self._list()
        elif not any(self._notes):
            yield self._table
        else:
            # No cell is folded, so that each row is one line, after that of the headings.
            heading, *rows = console.render_lines(self._table, options, pad=False)
            for row, note in ((heading, None), *zip_longest(rows, self._notes)):
                yield from (*row, Segment.line())
                if note is not None:
                    yield Padding(note, (0, 0, 0, 2))

    def _list(self) -> RenderableType:
        titles = [str(column.header) for column in self._table.columns]
        title = str(self._table.title or "").strip("\n")
        parts: list[RenderableType] = [Text(title, "table.title")] if title else []
        num_names = int(titles != _SIDES)
        for row, style, note in zip_longest(self._rows, self._styles, self._notes):
            values = Table.grid(padding=(0, 1))
            values.add_column(no_wrap=True, style="dim")
            values.add_column(overflow="fold")
            names, cells = row[:num_names], row[num_names:]
            shown = [each for each in zip(titles[num_names:], cells, strict=False) if each[1].plain.strip()]
            if [label for label, _ in shown] == _SIDES and shown[0][1].plain == shown[1][1].plain:
                shown = [("both", shown[0][1])]
            for label, cell in shown:
                values.add_row(label, cell)
            parts += [name for name in names if name.plain.strip()]
            parts += [Padding(each, (0, 0, 0, 2), style=style or "", expand=False) for each in (values, note) if each]
        return Group(*parts)
