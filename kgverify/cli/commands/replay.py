"""`kgverify replay`: run a reproducer again."""

from pathlib import Path
from typing import Annotated

import typer

from kgverify.api.replay import replay as replay_file
from kgverify.cli import completion, options
from kgverify.cli.commands.diff import EXIT_CODES
from kgverify.cli.progress import make_result_console, print_text
from kgverify.engines.table import COMPILED, make_entry
from kgverify.errors import UserError
from kgverify.runs.job import EngineLike
from kgverify.testing.checking.failure import LAW
from kgverify.testing.reproducers.pytest_file import write_test
from kgverify.testing.reproducers.text_format import read_reproducer


def replay(
    file: Annotated[
        Path, typer.Argument(help="A reproducer that `kgverify shrink` or `fuzz` wrote.", show_default=False)
    ],
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="ENGINE",
            help="Replaces the file's engine: compiled (without faults), reference, or your own as MODULE:NAME or"
            " FILE.py:NAME.",
            autocompletion=completion.complete_engine,
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="ENGINE",
            help="Replaces the engine that the file's engine is compared with.",
            autocompletion=completion.complete_engine,
        ),
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            "--fault",
            help="Replaces the file's faults in the compiled evaluator.",
            autocompletion=completion.complete_fault,
        ),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            help="Replaces the file's mode of the compiled evaluator.", autocompletion=completion.complete_mode
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="Replaces the file's device of the compiled evaluator.", autocompletion=completion.complete_device
        ),
    ] = None,
    test: Annotated[
        Path | None, typer.Option("--pytest", metavar="FILE", help="Write a test as well, and run it once.")
    ] = None,
    trust: options.Trust = False,
    quiet: options.Quiet = False,
) -> None:
    """Run a reproducer again, and report whether it still diverges in the same way."""
    found = replay_file(file, _choose_engine(file, engine, fault, mode, device), reference=reference, trust=trust)
    reproducer = found.reproducer
    console = make_result_console(None)
    print_text(console, *([] if quiet else [str(reproducer.sides)]), *str(found).split("\n"))
    if reproducer.neighbour and found.is_same:
        what = "the law holds" if reproducer.signature.kind == LAW else "both sides agree"
        print_text(console, f"   {what} with one change: {reproducer.neighbour}")
    if test is not None:
        first = write_test(reproducer, test)
        how = "it fails, as it must before the repair" if first.fails else f"IT DOES NOT FAIL: {first.message}"
        print_text(console, f"written: {test}   run once: {how}")
    raise typer.Exit(EXIT_CODES[found.verdict])


def _choose_engine(
    file: Path, engine: str | None, fault: list[str] | None, mode: str | None, device: str | None
) -> EngineLike | None:
    """Return the engine of the options; None for the file's own. UserError for options of an engine that does not run."""
    if not (fault or mode or device):
        return engine
    recorded = read_reproducer(file).engine
    name = engine or (COMPILED if fault else recorded.name)
    if name != COMPILED:
        where = "faults" if fault else "mode" if mode else "device"
        raise UserError(
            f"is an option of the compiled evaluator, which does not run: {name}",
            where=where,
            fix="leave it out, or use --engine compiled",
        )
    faults = tuple(fault) if fault else recorded.faults if engine is None else ()
    return make_entry(COMPILED, mode=mode or recorded.mode, device=device or recorded.device, faults=faults)
