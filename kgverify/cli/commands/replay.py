"""`kgverify replay`: run a reproducer again."""

from pathlib import Path
from typing import Annotated

import typer

from kgverify.cli.commands.diff import EXIT_CODES
from kgverify.cli.progress import make_result_console
from kgverify.laws.replay import replay as replay_reproducer
from kgverify.testing.checking.engine_makers import COMPILED, EAGER, EngineSpec, make_pipeline
from kgverify.testing.checking.failure import LAW
from kgverify.testing.reproducers.pytest_file import write_test
from kgverify.testing.reproducers.text_format import read_reproducer


def replay(
    file: Annotated[Path, typer.Argument(help="A reproducer, such as `kgverify shrink` writes.", show_default=False)],
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="ENGINE", help="The engine, instead of the file's: compiled (without faults), or MODULE:FUNCTION."
        ),
    ] = None,
    fault: Annotated[
        list[str] | None, typer.Option("--fault", help="A fault of the compiled evaluator, instead of the file's.")
    ] = None,
    mode: Annotated[str | None, typer.Option(help="Mode of the compiled evaluator, instead of the file's.")] = None,
    device: Annotated[str | None, typer.Option(help="Device of the compiled evaluator, instead of the file's.")] = None,
    test: Annotated[
        Path | None, typer.Option("--pytest", metavar="FILE", help="Also write a test, and run it once.")
    ] = None,
) -> None:
    """Run a reproducer again: does it still diverge, and in the same way?"""
    reproducer = read_reproducer(file)
    spec = reproducer.engine if engine is None else EAGER._replace(name=engine)
    if fault:
        spec = EngineSpec(COMPILED, EAGER.mode, EAGER.device, tuple(fault))
    spec = spec._replace(mode=mode or spec.mode, device=device or spec.device)
    where = "--fault" if fault else "--engine" if engine else f"{file}: engine"
    found = replay_reproducer(reproducer, make_pipeline(spec, where))
    console = make_result_console(None)
    console.print(f"{spec}\n{found}", markup=False, highlight=False)
    if reproducer.neighbour and found.is_same:
        what = "the law holds" if reproducer.signature.kind == LAW else "both sides agree"
        console.print(f"   {what} with one change: {reproducer.neighbour}", markup=False, highlight=False)
    if test is not None:
        first = write_test(reproducer.with_engine(spec), test)
        how = "it fails, as it must before the repair" if first.fails else f"IT DOES NOT FAIL: {first.message}"
        console.print(f"written: {test}   run once: {how}", markup=False, highlight=False)
    raise typer.Exit(EXIT_CODES[found.verdict])
