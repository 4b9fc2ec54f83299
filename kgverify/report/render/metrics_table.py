"""The table of metrics in a terminal, as a list where it is too narrow for the table."""

from collections.abc import Mapping, Sequence

from rich.console import Console, ConsoleOptions, RenderResult  # noqa: TID251  the type in rich's protocol
from rich.table import Table

from kgverify.report.render.fitted_table import FittedTable
from kgverify.report.render.screen import Text
from kgverify.report.wording import SIDES


class MetricsTable:
    """A row for each metric and a column for each of `SIDES`; every value is shown whole, whatever the width.

    title: the title of the column of metrics
    rows:  the metric to its values, in the order of `SIDES`
    """

    def __init__(self, title: str, rows: Mapping[str, Sequence[str | Text]]) -> None:
        self._title, self._rows = title, rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table, or the list."""
        table = Table(box=None, padding=(0, 3, 0, 0))
        for column in (self._title, *SIDES):
            table.add_column(column, no_wrap=True)
        for metric, values in self._rows.items():
            table.add_row(metric, *values)
        listed = Table.grid(padding=(0, 2))
        listed.add_column(overflow="fold")
        listed.add_column(overflow="fold")
        for i, side in enumerate(SIDES):
            listed.add_row(Text(side, style="bold"), "")
            for metric, values in self._rows.items():
                listed.add_row(f"  {metric}", values[i])
        yield FittedTable(table, listed)
