"""A table in a terminal, or something else where it is too narrow for the table."""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Final

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult  # noqa: TID251  the type in rich's protocol
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table

_WIDE: Final = 1000


class FittedTable:
    """A table if none of its cells is folded, else another form of it.

    notes: the text below each row of the table, if any
    """

    def __init__(self, table: Table, otherwise: RenderableType, notes: Sequence[RenderableType | None] = ()) -> None:
        self._table, self._otherwise, self._notes = table, otherwise, notes

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table, or the other form."""
        # On a console that is wide enough for anything.
        width = Measurement.get(console, options.update_width(_WIDE), self._table).maximum
        if width > options.max_width:
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
