"""`kgverify shrink`: reduce a divergence of a saved run to a reproducer that fits on a screen."""

from pathlib import Path
from typing import Annotated

import typer

from kgverify.cli.progress import check_writable, make_error_console, make_result_console
from kgverify.errors import UserError
from kgverify.graphs.load import load_graph
from kgverify.testing.checking.engine_makers import EngineSpec
from kgverify.testing.problems.problem import Problem
from kgverify.testing.reproducers.pytest_file import write_test
from kgverify.testing.reproducers.text_format import SUFFIX, write_reproducer
from kgverify.testing.shrinking.shrink import MAX_SECONDS
from kgverify.testing.shrinking.shrink_run import MAX_RUN_CALLS, ShrunkRun, find_engines, load_run_graph, shrink_run
from kgverify.verification.save import read_run

MOST_SHOWN = 24
"""Lines of a problem that are printed; the file has them all."""


def shrink(
    folder: Annotated[
        Path,
        typer.Argument(metavar="RUN_DIR", help="The folder that `kgverify diff --save` wrote.", show_default=False),
    ],
    divergence: Annotated[
        int, typer.Option(metavar="N", help="The number of the divergence in the report, from 1.")
    ] = 1,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="The file of the reproducer; by default in RUN_DIR."),
    ] = None,
    test: Annotated[
        Path | None, typer.Option("--pytest", metavar="FILE", help="Also write a test, and run it once.")
    ] = None,
    graph: Annotated[str | None, typer.Option(help="The graph, if it has been moved or renamed since.")] = None,
    rules: Annotated[Path | None, typer.Option(help="A file of rules that replaces the graph's own.")] = None,
    engine: Annotated[
        str | None, typer.Option(metavar="MODULE:FUNCTION", help="A function that makes your own engine.")
    ] = None,
    calls: Annotated[int, typer.Option(help="The limit on runs of the engine.")] = MAX_RUN_CALLS,
    seconds: Annotated[float, typer.Option(help="The limit on seconds.")] = MAX_SECONDS,
) -> None:
    """Shrink a divergence of a saved run to a minimal problem that diverges in the same way."""
    output = output or folder / f"divergence-{divergence}{SUFFIX}"
    check_writable(str(output))
    if test is not None:
        check_writable(str(test))
    run = read_run(folder)
    spec = None if engine is None else EngineSpec(engine)
    try:
        loaded = load_run_graph(run.report) if graph is None else load_graph(graph, rules=rules)
    except UserError as error:
        raise UserError(error.message, where=error.where, fix=f"{error.fix}; or give --graph") from None
    shrunk = shrink_run(
        run, divergence, engine=spec, graph=loaded, max_calls=calls, seconds=seconds, progress=_show_progress
    )
    reproducer = shrunk.reproducer
    write_reproducer(reproducer, output)
    console = make_result_console(None)
    _print_result(shrunk, spec is None and shrunk.engine != find_engines(run.report)[-1])
    console.print(f"\nwritten: {output}   run it again: kgverify replay {output}", markup=False, highlight=False)
    if test is not None:
        first = write_test(reproducer, test)
        how = "it fails, as it must before the repair" if first.fails else f"IT DOES NOT FAIL: {first.message}"
        console.print(f"written: {test}   run once: {how}", markup=False, highlight=False)


def _show_progress(name: str, problem: Problem, calls: int) -> None:
    console = make_error_console()
    if console.is_terminal:
        size = f"{len(problem.facts):,} facts, {len(problem.rules):,} rules"
        console.print(f"  {name.replace('_', ' '):<18} {size}   {calls} runs", style="dim", highlight=False)


def _print_result(shrunk: ShrunkRun, is_other: bool) -> None:
    console = make_result_console(None)
    result, minimum = shrunk.shrunk, shrunk.shrunk.problem
    num_queries = len(minimum.queries) + len(minimum.unranked)
    lines = [
        f"{result.failure.signature}   on {shrunk.engine}" + (", where it occurs as well" if is_other else ""),
        f"   graph      {_count(len(shrunk.graph.train), 'fact')}, {_count(len(shrunk.graph.rules), 'rule')}",
        f"   slice      {_count(len(shrunk.sliced.facts), 'fact')}, {_count(len(shrunk.sliced.rules), 'rule')}"
        f"   ({shrunk.removed:.1%} of the facts removed)",
        f"   minimum    {_count(len(minimum.facts), 'fact')}, {_count(len(minimum.rules), 'rule')},"
        f" {_count(num_queries, 'query', 'queries')}"
        f"   in {result.calls} runs, {result.seconds:.1f} s"
        + ("" if result.is_finished else ", the smallest found before --calls or --seconds ran out"),
        "",
    ]
    program = str(minimum).splitlines()
    if len(program) > MOST_SHOWN:
        hidden = len(program) - MOST_SHOWN
        program = [*program[: MOST_SHOWN // 2], f"... {hidden} lines", *program[-MOST_SHOWN // 2 :]]
    lines += [f"   {line}" for line in program]
    if result.neighbour is not None:
        lines += ["", f"both sides agree with one change: {result.neighbour.change}"]
    console.print("\n".join(lines), markup=False, highlight=False)


def _count(num: int, one: str, many: str = "") -> str:
    return f"{num:,} {one if num == 1 else many or one + 's'}"
