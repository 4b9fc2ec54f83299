"""`kgverify trace export`: write steps of a trace for other programs."""

from pathlib import Path
from typing import Annotated

import typer

from kgverify.cli.progress import make_result_console
from kgverify.report.export import export_steps, parse_selection
from kgverify.trace.model.levels import TraceLevel
from kgverify.trace.read.trace_file import read_trace
from kgverify.verification.rebuild import rebuild_goals


def export(
    path: Annotated[Path, typer.Argument(metavar="TRACE", help="A trace: a file, or a folder of shards.")],
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="A name ending in .jsonl, .csv, .npz or .parquet.")],
    candidates: Annotated[
        str, typer.Option(help="The candidates: all, or numbers and ranges such as 0,5,10-20.")
    ] = "all",
    rebuild: Annotated[
        bool, typer.Option(help="Rebuild the goals of a compact trace by replay; otherwise leave them out.")
    ] = True,
) -> None:
    """Export the steps of some candidates, one row per step, in names; for .npz, the columns unchanged."""
    trace = read_trace(path)
    rows = parse_selection(candidates, len(trace.columns.candidates.query), "--candidates")
    if rebuild and trace.header.level == TraceLevel.COMPACT:
        trace = rebuild_goals(trace)
    num_steps = export_steps(trace, rows, to)
    make_result_console(None).print(
        f"{to}: {len(rows):,} candidates, {num_steps:,} steps", highlight=False, markup=False
    )
