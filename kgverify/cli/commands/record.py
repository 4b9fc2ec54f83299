"""`kgverify record`: run one engine and keep its trace."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Final, NoReturn

import typer

from kgverify.api.record import RecordingOptions, record_job
from kgverify.cli import completion, options
from kgverify.cli.options import EngineOptions, RunOptions, with_run_options
from kgverify.cli.progress import (
    check_writable,
    make_result_console,
    print_note,
    print_text,
    show_phase,
    typed_command,
    write_json,
)
from kgverify.engines.table import COMPILED, REFERENCE
from kgverify.errors import UserError, count_of
from kgverify.interrupts import note_interrupt
from kgverify.report.render.terminal import describe_execution
from kgverify.runs.job import Engines, Reference
from kgverify.trace.files.output_path import count_safe, partial_of
from kgverify.verification.record import SHARD_STEPS

_SIGNALS: Final = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


@with_run_options()
def record(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE.h5", help="The trace to write.")],
    run_options: RunOptions,
    engine_options: EngineOptions,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="ENGINE",
            help="The engine to record: compiled, reference, or your own as MODULE:NAME or FILE.py:NAME.",
            autocompletion=completion.complete_engine,
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="ENGINE",
            help="Instead of --engine: the engine to record as the reference of a later comparison.",
            autocompletion=completion.complete_engine,
        ),
    ] = None,
    jobs: options.Jobs = 1,
    scheduler: options.Scheduler = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume an interrupted recording.")] = False,
    accept_changed: options.AcceptChanged = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing trace.")] = False,
    shard_steps: Annotated[
        int, typer.Option(min=1, help="Steps committed at a time; a longer trace becomes a folder of shards.")
    ] = SHARD_STEPS,
    level: Annotated[
        str,
        typer.Option(
            help="Kept of each step: digests, compact (clauses, scores), steps, or deep (also what each stage gave).",
            autocompletion=completion.complete_level,
        ),
    ] = "steps",
    archive: Annotated[bool, typer.Option("--archive", help="Compress as far as HDF5's filters can.")] = False,
    json_path: options.JsonPath = None,
) -> None:
    """Run one engine and write its trace: a file or, if it is large, a folder of shards."""
    check_writable(json_path)
    if engine is not None and reference is not None:
        raise UserError("records one engine, and two are given", where="reference", fix="leave one of them out")
    if engine is None and reference is None:
        raise UserError(
            "expected an engine to record, found none",
            where="--engine",
            fix="give compiled, reference, or your own as MODULE:NAME or FILE.py:NAME",
        )
    try:
        with (
            ending_on_signals(),
            show_phase(f"recording {engine or reference}", 0) as progress,
        ):
            recorded = engine or reference or COMPILED
            engines = engine_options.engines(recorded, REFERENCE)
            if recorded == REFERENCE:
                engines = Engines(Reference(jobs, scheduler))
            elif jobs != 1:
                raise UserError("is for the reference, which does not run", where="jobs", fix="leave it out")
            recording = record_job(
                run_options.job(engines),
                output,
                RecordingOptions(
                    level=level,
                    archive=archive,
                    shard_steps=shard_steps,
                    resume=resume,
                    accept_changed=accept_changed or (),
                    overwrite=force,
                    as_reference=reference is not None,
                    scheduler=scheduler,
                ),
                progress=progress,
            )
    except KeyboardInterrupt as error:
        _explain_interruption(output, resume=resume)
        if isinstance(error, Ended):
            print_note(f"ended by {signal.Signals(error.number).name}")
            raise typer.Exit(error.exit_code) from None
        raise
    if recording.reasons:
        print_note(describe_execution(recording.reasons, recording.caches), style="dim")
    resumed = f", {recording.num_resumed:,} of them from before" if recording.num_resumed else ""
    print_text(
        make_result_console(json_path),
        f"{recording.path}: {count_of(recording.num_candidates, 'candidate')}{resumed}, {count_of(recording.num_steps, 'step')}",
    )
    for change in recording.accepted:
        print_note(f"resumed although code changed, as accepted: {change}")
    data = {
        "path": str(recording.path),
        "num_candidates": recording.num_candidates,
        "num_steps": recording.num_steps,
        "num_resumed": recording.num_resumed,
        "accepted": recording.accepted,
    }
    write_json(data, json_path, indent=None)


def _explain_interruption(output: Path, *, resume: bool) -> None:
    """Print what an interrupted recording has saved, and the command that resumes it."""
    partial = partial_of(output)
    if not partial.is_dir():
        print_note(f"nothing was recorded yet; {output} is unchanged")
        return
    num_candidates, num_steps = count_safe(partial)
    print_note(f"{count_of(num_candidates, 'candidate')} with {num_steps:,} steps are safe in {partial}")
    print_note(f"resume with: {typed_command(*([] if resume else ['--resume']))}")


class Ended(KeyboardInterrupt):
    """A signal that asks the process to end, such as SIGTERM; finished work is kept and reported."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    @property
    def exit_code(self) -> int:
        """The exit code of a process that ends by this signal, as in a shell."""
        return 128 + self.number


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Raise `Ended` on the first SIGTERM or SIGHUP; ignore those that follow during the clean-up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> NoReturn:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        note_interrupt()
        raise Ended(number)

    before = [(each, signal.getsignal(each)) for each in _SIGNALS]
    for each, handler in before:
        # An ignored signal, as under nohup, stays ignored.
        if handler is not signal.SIG_IGN:
            signal.signal(each, end)
    try:
        yield
    finally:
        for each, handler in before:
            signal.signal(each, handler if handler is not None else signal.SIG_DFL)
