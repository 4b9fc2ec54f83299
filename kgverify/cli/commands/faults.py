"""`kgverify faults`: the catalogue of planted faults."""

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from kgverify.cli import options
from kgverify.cli.progress import make_result_console, show_phase, write_json, write_result
from kgverify.faults.catalogue import COMPOSITES, FAULTS, find_fault

DEFAULT_GRAPHS = ("countries", "random:1", "random:4")

app = typer.Typer(
    help="The catalogue of faults that `--fault` plants in the compiled evaluator.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def _options() -> None:
    pass


@app.command("list")
def list_faults(json_path: options.JsonPath = None) -> None:
    """List every fault: its stage, what it breaks, and where it was seen."""
    table = Table("name", "stage", "breaks", "seen in", title=f"{len(FAULTS)} faults", row_styles=("", "dim"))
    for fault in FAULTS.values():
        table.add_row(fault.name, fault.stage.value, escape(fault.breaks), escape(fault.seen_in))
    composites = Table("name", "faults", "breaks", "seen in", title=f"{len(COMPOSITES)} composites")
    for composite in COMPOSITES.values():
        composites.add_row(
            composite.name, ", ".join(composite.parts), escape(composite.breaks), escape(composite.seen_in)
        )
    console = make_result_console(json_path)
    console.print(table)
    console.print(composites)
    if json_path is not None:
        faults = [
            {
                "name": fault.name,
                "stage": fault.stage.value,
                "breaks": fault.breaks,
                "seen_in": fault.seen_in,
                "expected_kind": fault.expected_kind.value,
                "needs": fault.needs,
            }
            for fault in FAULTS.values()
        ]
        composed = [
            {"name": each.name, "parts": each.parts, "breaks": each.breaks, "seen_in": each.seen_in}
            for each in COMPOSITES.values()
        ]
        write_json({"faults": faults, "composites": composed}, json_path)


@app.command()
def score(
    graph: Annotated[
        list[str] | None, typer.Option(help="A graph to plant faults on; as often as wanted.", show_default=False)
    ] = None,
    fault: Annotated[list[str] | None, typer.Option(help="A fault to plant; all if none is given.")] = None,
    sound: Annotated[int, typer.Option(min=0, help="Configurations to try without a fault.")] = 200,
    pairs: Annotated[int, typer.Option(min=0, help="Pairs of faults to look for in lockstep.")] = 50,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the configurations and the pairs.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = os.cpu_count() or 1,
    log: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Note what is done, and go on from what is noted there.")
    ] = None,
    markdown: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the scoreboard as Markdown; - for standard output.")
    ] = None,
    json_path: options.JsonPath = None,
) -> None:
    """Plant every fault on several graphs and score what is found: verdict, first step, stage, class, false alarms."""
    from kgverify.faults.score_page import figures, render_page, table
    from kgverify.faults.score_run import num_trials, run_scoreboard

    graphs = tuple(graph or DEFAULT_GRAPHS)
    names = tuple(find_fault(name).name for name in fault or FAULTS)
    with show_phase("trials", num_trials(graphs, names, sound, pairs)) as progress:
        scores = run_scoreboard(
            graphs, names, num_sound=sound, num_pairs=pairs, seed=seed, jobs=jobs, log=log, progress=progress
        )
    console = make_result_console("-" if "-" in (markdown, json_path) else None)
    heads, rows = table(scores)
    by_fault = Table(*heads, row_styles=("", "dim"))
    for row in rows:
        by_fault.add_row(*map(escape, row))
    summary = Table("figure", "measured", "goal", "")
    for each in figures(scores):
        summary.add_row(each.name, each.text, f"{each.goal:.0%}", "" if each.is_met else "MISSED")
    console.print(by_fault)
    console.print(summary)
    if markdown is not None:
        write_result(render_page(scores).encode(), markdown)
    write_json(scores, json_path)
    raise typer.Exit(0 if all(each.is_met for each in figures(scores)) else 1)
