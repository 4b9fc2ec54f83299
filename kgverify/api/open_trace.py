"""`kgverify.open_trace`: a recorded trace to look at in Python and in notebooks."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType

from kgverify.arguments import checked
from kgverify.escaping import ShownAsText
from kgverify.report.render.terminal import draw_text
from kgverify.report.steps import TraceView, render_derivation, render_step, render_trace, view_trace
from kgverify.report.tables import Table, list_table, parse_selection, to_pandas, to_polars
from kgverify.trace.read.trace_file import TraceFile

if TYPE_CHECKING:
    import pandas
    import polars


@checked
def open_trace(path: Path | str, *, tolerates_shards: bool = False, is_lazy: bool = False) -> "RecordedTrace":
    """Open a trace file, or a folder of shards, without reading its columns.

    Args:
        path: A trace file, or a folder with a manifest. A folder whose recording did not finish is read as far as it
            was committed.
        tolerates_shards: Leave out shards that are missing or duplicated and list them in `TraceFile.faults`,
            instead of raising a UserError.
        is_lazy: Open a shard when it is first needed, and check only then that it matches the manifest.

    Returns:
        A `RecordedTrace`. A notebook shows it; `candidate` and `step` look things up, `to_pandas` and `to_polars` make
        data frames, and `load` reads the whole trace into memory.

    Raises:
        UserError: There is no trace, or its structure is not that of `docs/traces.md`.

    Example:
        >>> import kgverify as kv
        >>> _ = kv.record("countries", "mine.h5", "reference", queries=1, corruptions=2)
        >>> trace = kv.open_trace("mine.h5")
        >>> trace.num_candidates, len(trace.load().columns.steps.choice) == trace.num_steps
        (6, True)
        >>> trace.candidate(0)["outcome"], trace.step(0, 0)["choice"]
        ('PROVED', 0)
    """
    return RecordedTrace(path, tolerates_shards=tolerates_shards, is_lazy=is_lazy)


class RecordedTrace(TraceFile, ShownAsText):
    """A trace on disk, shown with names."""

    def candidate(self, candidate: int) -> "Shown":
        """Return a candidate with its steps, as `kgverify show TRACE --candidate N --json` writes it.

        Args:
            candidate: Its row, from 0.

        Returns:
            A dictionary, which a notebook and `print` show as the terminal does.

        Raises:
            UserError: The trace has no such candidate, or is of a level without goals.
        """
        data = self._view.derivation(candidate)
        return Shown(data, render_derivation(data))

    def step(self, candidate: int, step: int) -> "Shown":
        """Return a step of a candidate, as `kgverify show TRACE --candidate N --step N --json` writes it.

        Args:
            candidate: The row of the candidate, from 0.
            step: The step of its derivation, from 0.

        Returns:
            A dictionary, which a notebook and `print` show as the terminal does.

        Raises:
            UserError: The trace has no such candidate or step, or is of a level without goals.
        """
        data = self._view.candidate_step(candidate, step)
        return Shown(data, render_step(data))

    def to_pandas(self, table: str = "steps", *, candidates: str = "all") -> "pandas.DataFrame":
        """Return a table of the trace as a data frame of pandas, in names.

        Args:
            table: `candidates`, `steps`, `resolvents`, or `rankings`. Goals, and the resolvents of a step, are lists.
            candidates: All of them, or numbers and ranges such as `0,5,10-20`.

        Returns:
            A row for each candidate, step, resolvent or ranking. A column that the trace lacks is left out.

        Raises:
            UserError: There is no such table or candidate, the trace is damaged, or pandas is not installed.
        """
        frame: pandas.DataFrame = to_pandas(self._list(table, candidates))
        return frame

    def to_polars(self, table: str = "steps", *, candidates: str = "all") -> "polars.DataFrame":
        """Return a table of the trace as a data frame of polars, as `to_pandas` does.

        Args:
            table: `candidates`, `steps`, `resolvents`, or `rankings`. Goals, and the resolvents of a step, are lists.
            candidates: All of them, or numbers and ranges such as `0,5,10-20`.

        Returns:
            A row for each candidate, step, resolvent or ranking. A column that the trace lacks is left out.

        Raises:
            UserError: There is no such table or candidate, the trace is damaged, or polars is not installed.
        """
        frame: polars.DataFrame = to_polars(self._list(table, candidates))
        return frame

    def _list(self, table: str, candidates: str) -> Table:
        rows = parse_selection(candidates, self.num_candidates, "candidates")
        return list_table(self.load(), table, rows)

    @cached_property
    def _view(self) -> TraceView:
        return view_trace(self)

    def __str__(self) -> str:
        """Return the header and the first candidates, as the terminal shows them."""
        return draw_text(lambda console: console.print(render_trace(self._view)))


class Shown(dict[str, Any], ShownAsText):
    """Data that a notebook and `print` show as the terminal does."""

    def __init__(self, data: Mapping[str, Any], rendered: RenderableType) -> None:
        super().__init__(data)
        self._rendered = rendered

    def __str__(self) -> str:
        """Return the data as the terminal shows it."""
        return draw_text(lambda console: console.print(self._rendered))
