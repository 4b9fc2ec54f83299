"""A table in a terminal, or something else where it is too narrow for the table."""

from typing import Final

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult  # noqa: TID251  the type in rich's protocol
from rich.measure import Measurement
from rich.table import Table

_WIDE: Final = 1000


class FittedTable:
    """A table if none of its cells is folded, else another form of it."""

    def __init__(self, table: Table, otherwise: RenderableType) -> None:
        self._table, self._otherwise = table, otherwise

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table, or the other form."""
        # On a console that is wide enough for anything.
        width = Measurement.get(console, options.update_width(_WIDE), self._table).maximum
        yield self._table if width <= options.max_width else self._otherwise
