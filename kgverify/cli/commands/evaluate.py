"""`kgverify evaluate`: rank many candidates, by default with the compiled evaluator, part by part."""

import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Annotated, Final

from cyclopts import Parameter, validators

from kgverify.api.evaluate import (
    EvaluationOptions,
    Unfinished,
    compare_evaluations,
    evaluate_job,
    read_evaluation,
)
from kgverify.cli import options
from kgverify.cli.commands.diff import EXIT_CODES
from kgverify.cli.progress import (
    check_writable,
    make_result_console,
    print_lines,
    print_note,
    print_warning,
    show_work,
    typed_words,
    write_json,
)
from kgverify.comparison.equality import Equality
from kgverify.engines.protocol import ExplainedEngine
from kgverify.errors import UserError, check_known
from kgverify.escaping import make_lines_visible
from kgverify.evaluation.proving import ProcessGroup, join_process_group
from kgverify.interrupts import handle_signals, note_interrupt
from kgverify.progress import TimedPhases, silent_phase
from kgverify.report.evaluation import TABLES, list_evaluation, print_evaluation
from kgverify.report.next_steps import NextStep
from kgverify.report.render.terminal import describe_settings
from kgverify.report.tables import check_format, write_table

_SAME_PRESS: Final = 1.0
"""Seconds in which a second Ctrl-C counts as the first one, in a group: `torchrun` repeats what the terminal has sent."""


def evaluate(
    *,
    sides: Annotated[options.SideOptions, options.OWN] = options.SideOptions(),
    job: Annotated[options.AllJobOptions, options.OWN] = options.AllJobOptions(),
    chosen: Annotated[EvaluationOptions, options.EVALUATION] = EvaluationOptions(),
    check: Annotated[int | None, Parameter(validator=validators.Number(gte=0))] = None,
    save: Annotated[Path | None, Parameter(metavar="DIR")] = None,
    output: Annotated[Path | None, Parameter(alias="-o", metavar="FILE.csv|...")] = None,
    table: str = "queries",
    compare: Annotated[Path | None, Parameter(metavar="FILE.json")] = None,
) -> int:
    """Rank the triples of a split among their corruptions: all candidates, or a number of them for each side.

    On several GPUs of one host: torchrun --nproc-per-node 4 -m kgverify evaluate ... --save DIR. On several machines:
    --scheduler ADDRESS.

    Args:
        check: Number of candidates that the reference proves as well; chosen by their number if not given.
        save: Save finished parts in a folder or at a URL, and resume from those in it.
        output: Write a table of the ranks: FILE.csv, FILE.jsonl or FILE.parquet.
        table: The table of --output: queries, relations or metrics.
        compare: Compare with an earlier evaluation, which --json wrote: paired differences with intervals.
    """
    earlier = None if compare is None else read_evaluation(compare)
    if output is not None:
        check_known(table, TABLES, "table", "table")
        check_format(output)
        check_writable(str(output))
    group = join_process_group()
    leads = group.index == 0
    phases = TimedPhases(show_work if leads else silent_phase)
    if group.size > 1 and save is None:
        raise UserError(f"{group.size} processes need a folder", where="save", fix="give --save DIR")
    if group.size > 1 and chosen.scheduler is not None:
        raise UserError(
            f"the workers of the scheduler prove, and torchrun started {group.size} processes for it as well",
            where="scheduler",
            fix="give it to a command without torchrun",
        )
    if not leads:
        # Wait until the leader has checked the options: it alone reports errors.
        group.broadcast(b"")
    started = time.perf_counter()
    with nullcontext() if leads else redirect_stderr(StringIO()):
        made = job.make(sides.make(), Equality(minimum=chosen.minimum))
    phases.seconds["reading"] = time.perf_counter() - started
    chosen = replace(chosen, check=check, warn=print_warning)
    with stop_between_parts(group) as should_stop:
        try:
            found = evaluate_job(made, chosen, save=save, phase=phases, group=group, should_stop=should_stop)
        except Unfinished as error:
            raise _explain_unfinished(error, save, group, is_stopped=should_stop()) from None
    if found is None:
        return 0
    report = found.report
    first = min((each.query for each in report.check.differences), default=0) if report.check else 0
    console = make_result_console()
    step = _show_step(first + 1)
    print_evaluation(report, console, step.text)
    print_lines(console, *[f"note: {note}" for note in found.notes])
    print_lines(console, f"time: {', '.join(f'{title} {s:.1f} s' for title, s in phases.seconds.items())}", style="dim")
    if isinstance(found.engine, ExplainedEngine):
        print_lines(console, describe_settings(found.engine.reasons), style="dim")
    if output is not None:
        write_table(list_evaluation(report, table), output)
    if earlier is not None:
        console.print()
        compare_evaluations(earlier, report).print(console)
    write_json(report, [step] * bool(report.check and report.check.differences))
    return EXIT_CODES[report.verdict]


@contextmanager
def stop_between_parts(group: ProcessGroup) -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether to stop after the current part; a second Ctrl-C ends the command at once.

    In a group, SIGTERM stops it too: `torchrun` sends it when another process ends.
    """
    pressed: list[float] = []

    def stop(number: int, frame: FrameType | None) -> None:
        note_interrupt(number)
        if pressed and time.monotonic() - pressed[0] > (_SAME_PRESS if group.size > 1 else 0):
            raise KeyboardInterrupt
        if not pressed and group.index == 0:
            # Not through a console: the signal may have interrupted one that is printing.
            again = "; Ctrl-C again ends at once" if number == signal.SIGINT else ""
            sys.stderr.write(make_lines_visible(f"\nstopping after the current part{again}\n"))
        pressed.append(time.monotonic())

    with handle_signals([signal.SIGINT, *([signal.SIGTERM] if group.size > 1 else [])], stop):
        yield lambda: bool(pressed)


def _explain_unfinished(
    error: Unfinished, save: Path | None, group: ProcessGroup, *, is_stopped: bool
) -> UserError | KeyboardInterrupt:
    """Return the error of an evaluation whose process ended early, or the interrupt that stopped it, which is explained."""
    command = shlex.join(["kgverify", *sys.argv[1:]])
    if group.size > 1:
        command = f"torchrun --nproc-per-node {group.size} -m {command}"
    if not is_stopped:
        return UserError(error.message, where=error.where, fix=f"{error.fix} with: {command}")
    how = f"resume with: {command}" if save is not None else "with --save DIR they would have been kept"
    print_note(f"{error.message.partition(':')[0]}; {how}")
    return KeyboardInterrupt()


def _show_step(num_queries: int) -> NextStep:
    """Return the step of a `kgverify diff` command with the same options, for the first queries alone."""
    own = {
        "--save",
        "--json",
        "--check",
        "--part-size",
        "--queries",
        "--minimum",
        "--scheduler",
        "--accept-changed",
        "--output",
        "-o",
        "--table",
        "--compare",
    }
    words = [word for word in typed_words(own)[1:] if word != "--rank-only"]
    if not any(word.split("=")[0] == "--corruptions" for word in words):
        words += ["--corruptions", "all"]
    words = ["kgverify", "diff", "--queries", str(num_queries), *words]
    return NextStep(does="shows the step and the stage", command=tuple(words))
