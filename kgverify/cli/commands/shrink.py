"""`kgverify shrink`: from a divergence of a saved run to a reproducer that fits on a screen."""

from pathlib import Path
from typing import Annotated

import typer

from kgverify.api.shrink import shrink as shrink_run
from kgverify.cli import completion, options
from kgverify.cli.progress import (
    check_writable,
    make_error_console,
    make_result_console,
    print_lines,
    print_text,
    replay_command,
)
from kgverify.errors import UserError, count_of
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.graphs.load import load_graph
from kgverify.testing.problems.problem import Problem
from kgverify.testing.reproducers.pytest_file import write_test
from kgverify.testing.reproducers.text_format import SUFFIX
from kgverify.testing.shrinking.shrink import MAX_SECONDS
from kgverify.testing.shrinking.shrink_run import MAX_RUN_CALLS


def shrink(
    folder: Annotated[
        Path,
        typer.Argument(metavar="RUN_DIR", help="The folder that `kgverify diff --save` wrote.", show_default=False),
    ],
    divergence: Annotated[int, typer.Option(metavar="N", help="The divergence of the run, counted from 1.")] = 1,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="The reproducer to write; by default in RUN_DIR."),
    ] = None,
    pytest_file: Annotated[
        Path | None, typer.Option("--pytest", metavar="FILE", help="Write a test as well, and run it once.")
    ] = None,
    graph: Annotated[
        str | None,
        typer.Option(help="The graph of the run, if it has moved.", autocompletion=completion.complete_graph),
    ] = None,
    train: options.Train = None,
    valid: options.Valid = None,
    test: options.Test = None,
    rules: options.Rules = None,
    domains: options.Domains = None,
    rule_variables: options.RuleVariables = None,
    skip_rules: options.SkipRules = False,
    columns: options.Columns = None,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="ENGINE",
            help="Replaces the run's engine, e.g. by your own as MODULE:NAME or FILE.py:NAME.",
            autocompletion=completion.complete_engine,
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="ENGINE",
            help="Replaces the engine that the run's engine was compared with.",
            autocompletion=completion.complete_engine,
        ),
    ] = None,
    calls: Annotated[int, typer.Option(min=0, help="Maximum runs of the engine.")] = MAX_RUN_CALLS,
    seconds: Annotated[float, typer.Option(min=0, help="Maximum seconds.")] = MAX_SECONDS,
    trust: options.Trust = False,
) -> None:
    """Shrink a divergence of a saved run to a minimal problem that diverges in the same way."""
    is_run = folder.is_dir()
    output = output or folder / f"divergence-{divergence}{SUFFIX}"
    if is_run or output.parent != folder:
        check_writable(str(output))
    if pytest_file is not None:
        check_writable(str(pytest_file))
    shrunk = shrink_run(
        folder,
        divergence,
        graph=_load_moved(
            options.GraphOptions(graph or "", train, valid, test, rules, domains, rule_variables, skip_rules, columns)
        ),
        engine=engine,
        reference=reference,
        max_calls=calls,
        seconds=seconds,
        progress=_show_progress,
        trust=trust,
    )
    console = make_result_console(None)
    print_lines(console, [*str(shrunk).split("\n"), ""])
    for path, what in zip(shrunk.save_pair(output), ("both sides differ", "both sides agree"), strict=False):
        again = replay_command(path, engine, reference, trust=trust)
        print_lines(console, [f"written: {path}, where {what}   run it again: {again}"])
    if pytest_file is not None:
        first = write_test(shrunk.reproducer, pytest_file)
        how = "it fails, as it must before the repair" if first.fails else f"IT DOES NOT FAIL: {first.message}"
        print_text(console, f"written: {pytest_file}   run once: {how}")


def _load_moved(given: options.GraphOptions) -> KnowledgeGraph | None:
    """Load the graph that the options name; None if they name none. UserError for options of no graph."""
    if given.graph or given.train:
        return load_graph(given.graph or None, **given.files())
    for name, value in given.files().items():
        if value:
            where = f"--{name.replace('_', '-')}"
            raise UserError("belongs to no graph", where=where, fix="give --graph or --train as well")
    return None


def _show_progress(name: str, problem: Problem, calls: int) -> None:
    console = make_error_console()
    if console.is_terminal:
        size = f"{count_of(len(problem.facts), 'fact')}, {count_of(len(problem.rules), 'rule')}"
        console.print(f"  {name.replace('_', ' '):<18} {size}   {count_of(calls, 'run')}", style="dim")
