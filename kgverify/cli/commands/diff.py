"""`kgverify diff`: compare two engines, or two recorded traces."""

import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from kgverify.cli import options
from kgverify.cli.options import check_reference_workers, naming_options
from kgverify.cli.progress import (
    check_writable,
    make_result_console,
    show_phase,
    show_work,
    typed_command,
    write_result,
)
from kgverify.cli.run_options import RunOptions, with_run_options
from kgverify.comparison.result import Verdict
from kgverify.errors import UserError
from kgverify.faults.plant import compiled_pipeline_with_faults
from kgverify.report.render.terminal import NextCommand, print_report
from kgverify.report.report import encode_report
from kgverify.runs.fan_out import reference_over
from kgverify.runs.output_folder import check_output_folder
from kgverify.verification.save import save_recorded, save_verification
from kgverify.verification.verify import RecordedComparison, Verification, compare_recorded, verify

EXIT_CODES = {Verdict.AGREE: 0, Verdict.DIVERGE: 1, Verdict.INCONCLUSIVE: 3}


@with_run_options()
def diff(
    expected: Annotated[Path | None, typer.Argument(help="A recorded trace to compare with.")] = None,
    actual: Annotated[Path | None, typer.Argument(help="The recorded trace to judge.")] = None,
    *,
    run_options: RunOptions,
    device: options.Device = "auto",
    mode: options.Mode = "auto",
    precision: options.Precision = "float32",
    slots: options.Slots = None,
    fault: options.Faults = None,
    lockstep: Annotated[
        bool, typer.Option("--lockstep", help="Take every step from the expected goal: lists independent faults.")
    ] = False,
    determinism: Annotated[bool, typer.Option(help="Run each engine twice first.")] = True,
    fresh_cache: Annotated[
        bool, typer.Option("--fresh-cache", help="Compile everything anew, in caches that are gone afterwards.")
    ] = False,
    jobs: options.Jobs = 1,
    scheduler: options.Scheduler = None,
    save: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Save both traces and the report in a folder.")
    ] = None,
    json_path: options.JsonPath = None,
) -> None:
    """Compare the compiled evaluator with the reference prover, or two recorded traces, step by step."""
    check_reference_workers(
        jobs, scheduler, has_reference=expected is None, why="two recorded traces are compared without it"
    )
    check_writable(json_path)
    if save is not None:
        check_output_folder(save)
    if expected is not None:
        if actual is None:
            raise UserError(
                "expected two traces, found one", where=str(expected), fix="kgverify diff EXPECTED.h5 ACTUAL.h5"
            )
        if fresh_cache:
            raise UserError("two recorded traces compile nothing", where="--fresh-cache", fix="leave it out")
        if lockstep or fault:
            raise UserError(
                "needs engines, and two recorded traces have none",
                where="--lockstep" if lockstep else "--fault",
                fix="leave it out, or leave out the two traces",
            )
        with show_comparison(expected, actual) as progress:
            recorded = compare_recorded(expected, actual, progress=progress)
        _deliver(recorded, save, json_path)
    else:
        run = run_options.build()
        with ExitStack() as stack:
            if fresh_cache:
                from kgverify.engines.compiled.execution.caches import fresh_caches

                stack.enter_context(fresh_caches())
            with naming_options():
                judged = compiled_pipeline_with_faults(
                    run, fault or (), mode=mode, device=device, slots=slots, precision=precision
                )
            reference = stack.enter_context(reference_over(run, jobs=jobs, scheduler=scheduler))
            verification = verify(
                run, reference, judged, lockstep=lockstep, check_determinism=determinism, phase=show_phase
            )
        _deliver(verification, save, json_path)


@contextmanager
def show_comparison(*paths: Path) -> Iterator[Callable[[int], None]]:
    """Progress of a comparison, in MiB of both traces; called with bytes."""
    files = [file for path in paths for file in (path.glob("*.h5") if path.is_dir() else [path]) if file.is_file()]
    with show_work("comparing, MiB", sum(file.stat().st_size for file in files) >> 20) as tell:
        num_passed = 0

        def advance(num_bytes: int) -> None:
            nonlocal num_passed
            before, num_passed = num_passed >> 20, num_passed + num_bytes
            if num_passed >> 20 > before:
                tell((num_passed >> 20) - before)

        yield advance


def _deliver(found: Verification | RecordedComparison, save: Path | None, json_path: str | None) -> None:
    report, console = found.report, make_result_console(json_path)
    if isinstance(found, RecordedComparison):
        if save is not None:
            save_recorded(found, save)
        commands = list(_next_commands(save, has_lockstep=False))
        print_report(report, console, expected=found.first_candidate(), is_excerpt=True, next_commands=commands)
    else:
        report = msgspec.structs.replace(report, command=typed_command())
        if save is not None:
            save_verification(replace(found, report=report), save)
        commands = list(_next_commands(save, has_lockstep=not report.lockstep))
        print_report(report, console, expected=found.expected, next_commands=commands)
    if json_path is not None:
        write_result(encode_report(report), json_path)
    raise typer.Exit(EXIT_CODES[report.verdict])


def _next_commands(save: Path | None, *, has_lockstep: bool) -> Iterator[NextCommand]:
    """The same command again, as it was typed, for what it did not do."""
    if save is not None:
        yield NextCommand(shlex.join(["kgverify", "show", str(save)]), "step through it")
    else:
        yield NextCommand(typed_command("--save", "run"), "then step through it: kgverify show run")
    if has_lockstep:
        yield NextCommand(typed_command("--lockstep"), "every independent fault")
