"""`kgverify diff`: compare two engines, or two recorded traces."""

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from kgverify.api.compare import compare
from kgverify.api.inputs import names_engine
from kgverify.api.verify import verify_job
from kgverify.cli import completion, options
from kgverify.cli.engine_warnings import warnings_afterwards
from kgverify.cli.options import EngineOptions, RunOptions, with_run_options
from kgverify.cli.progress import (
    check_writable,
    make_result_console,
    show_phase,
    show_work,
    typed_command,
    write_result,
)
from kgverify.comparison.equality import Equality
from kgverify.comparison.modulo.policy import EXACT, KINDS
from kgverify.comparison.result import Verdict
from kgverify.engines.table import COMPILED, REFERENCE
from kgverify.errors import UserError
from kgverify.files.writing import check_folder
from kgverify.report.render.terminal import NextCommand, print_report
from kgverify.report.report import encode_report

EXIT_CODES = {Verdict.AGREE: 0, Verdict.DIVERGE: 1, Verdict.INCONCLUSIVE: 3}


@with_run_options()
@warnings_afterwards()
def diff(
    expected: Annotated[
        Path | None,
        typer.Argument(help="The trace to compare with; or an engine, which takes each step of the other trace again."),
    ] = None,
    actual: Annotated[Path | None, typer.Argument(help="The trace to judge.")] = None,
    *,
    engine: options.Engine = COMPILED,
    reference: options.ReferenceOption = REFERENCE,
    run_options: RunOptions,
    engine_options: EngineOptions,
    lockstep: Annotated[
        bool, typer.Option("--lockstep", help="Start every step from the expected goal: lists independent faults.")
    ] = False,
    determinism: Annotated[bool, typer.Option(help="Let each engine prove a sample again.")] = True,
    score_error: Annotated[
        str | None,
        typer.Option(help="Error of the actual scores to accept: in nats, or a float type, such as float16."),
    ] = None,
    modulo: Annotated[
        str | None,
        typer.Option(
            metavar="KINDS",
            help="Differences that are benign: names, order, duplicates, separated by commas; none. Names are benign if not"
            " given and an engine numbers variables its own way.",
            autocompletion=completion.several_of((*KINDS, EXACT)),
        ),
    ] = None,
    minimum: options.MinimumSpec = None,
    allow_dialects: Annotated[
        bool, typer.Option("--allow-dialects", help="Compare traces of different dialects, and say where they differ.")
    ] = False,
    fresh_cache: Annotated[
        bool, typer.Option("--fresh-cache", help="Compile into empty caches, which are deleted afterwards.")
    ] = False,
    jobs: options.Jobs = 1,
    scheduler: options.Scheduler = None,
    save: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Save both traces and the report in a folder.")
    ] = None,
    quiet: options.Quiet = False,
    json_path: options.JsonPath = None,
) -> None:
    """Compare two engines, or two recorded traces, step by step.

    By default the compiled evaluator is compared with the reference prover. `kgverify diff reference TRACE.h5` judges a recorded
    trace: the reference takes each of its steps again.
    """
    check_writable(json_path)
    equality = Equality(
        lockstep=lockstep,
        determinism=determinism,
        score_error=score_error,
        modulo=modulo,
        minimum=minimum,
        allow_dialects=allow_dialects,
    )
    if expected is not None:
        if actual is None:
            raise UserError(
                "expected two traces, found one", where=str(expected), fix="kgverify diff EXPECTED.h5 ACTUAL.h5"
            )
        for option, is_given in (
            ("--fresh-cache", fresh_cache),
            ("--jobs", jobs != 1),
            ("--scheduler", scheduler is not None),
            ("--lockstep", lockstep),
            ("--fault", engine_options.fault),
            ("--engine", engine != COMPILED),
            ("--reference", reference != REFERENCE),
            ("--dialect", run_options.proofs.dialect is not None and not names_engine(str(expected))),
        ):
            if is_given:
                raise UserError(
                    "needs engines, and two recorded traces have none",
                    where=option,
                    fix="leave it out, or leave out the two traces",
                )
        with show_comparison(expected, actual) as progress:
            report = compare(
                str(expected),
                actual,
                save=save,
                equality=equality,
                limits=run_options.proofs.typed_limits() if names_engine(str(expected)) else None,
                progress=progress,
            )
    else:
        if save is not None:
            check_folder(save)
        engines = engine_options.engines(engine, reference, jobs=jobs, scheduler=scheduler, fresh_cache=fresh_cache)
        report = verify_job(run_options.job(engines, equality), save=save, command=typed_command(), phase=show_phase)
    has_lockstep = expected is None and not lockstep
    print_report(
        report,
        make_result_console(json_path),
        next_commands=list(_next_commands(save, has_lockstep=has_lockstep)),
    )
    if json_path is not None:
        write_result(encode_report(report), json_path)
    raise typer.Exit(EXIT_CODES[report.verdict])


@contextmanager
def show_comparison(*paths: Path) -> Iterator[Callable[[int], None]]:
    """Show the progress of a comparison in MiB of both traces; the function it yields takes bytes."""
    files = [file for path in paths for file in (path.glob("*.h5") if path.is_dir() else [path]) if file.is_file()]
    with show_work("comparing, MiB", sum(file.stat().st_size for file in files) >> 20) as advance:
        num_passed = 0

        def advance_bytes(num_bytes: int) -> None:
            nonlocal num_passed
            before, num_passed = num_passed >> 20, num_passed + num_bytes
            if num_passed >> 20 > before:
                advance((num_passed >> 20) - before)

        yield advance_bytes


def _next_commands(save: Path | None, *, has_lockstep: bool) -> Iterator[NextCommand]:
    """Yield the commands that show more: the same command with other options, or `kgverify show`."""
    if save is not None:
        yield NextCommand(shlex.join(["kgverify", "show", str(save)]), "step through it")
    else:
        yield NextCommand(typed_command("--save", "run"), "then step through it: kgverify show run")
    if has_lockstep:
        yield NextCommand(typed_command("--lockstep"), "every independent fault")
