"""`kgverify evaluate`: rank many candidates, by default with the compiled evaluator, part by part."""

import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from functools import partial
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Annotated, Final

import numpy as np
from cyclopts import Parameter, validators

from kgverify.api.evaluate import EvaluationOptions, build_evaluated_side, build_evaluation_sides
from kgverify.cli import options
from kgverify.cli.commands.diff import EXIT_CODES
from kgverify.cli.progress import (
    make_result_console,
    print_lines,
    print_note,
    print_warning,
    show_work,
    typed_words,
    write_encoded,
)
from kgverify.comparison.exercise.exercise import parse_minimum
from kgverify.engines.protocol import ExplainedEngine
from kgverify.engines.table import REFERENCE
from kgverify.errors import UserError
from kgverify.escaping import make_lines_visible
from kgverify.evaluation.evaluate import EvaluationResult, ProcessGroup, join_process_group
from kgverify.evaluation.evaluate import evaluate as evaluate_run
from kgverify.evaluation.evaluation_report import report_evaluation
from kgverify.evaluation.part_store import write_summary
from kgverify.evaluation.sampling import choose_num_checked
from kgverify.interrupts import note_interrupt
from kgverify.progress import TimedPhases, silent_phase
from kgverify.ranking.corrupt import count_candidates
from kgverify.ranking.metric import describe_hits
from kgverify.report.evaluation import encode_evaluation, print_evaluation
from kgverify.report.render.terminal import describe_execution
from kgverify.runs.dask_workers import DaskWorkers
from kgverify.runs.fan_out import reference_beside

_SAME_PRESS: Final = 1.0
"""Seconds in which a second Ctrl-C counts as the first one, in a group: `torchrun` repeats what the terminal has sent."""


def evaluate(
    *,
    engines: Annotated[options.EngineOptions, options.OWN] = options.EngineOptions(),
    source: Annotated[options.GraphOptions, options.GRAPH] = options.GraphOptions(),
    queries: Annotated[options.AllQueryOptions, options.GRAPH] = options.AllQueryOptions(),
    proofs: Annotated[options.ProofOptions, options.PROOFS] = options.ProofOptions(),
    evaluator: Annotated[options.EvaluatorOptions, options.EVALUATOR] = options.EvaluatorOptions(),
    chosen: Annotated[EvaluationOptions, options.EVALUATION] = EvaluationOptions(),
    check: Annotated[int | None, Parameter(validator=validators.Number(gte=0))] = None,
    save: Annotated[Path | None, Parameter(metavar="DIR")] = None,
) -> int:
    """Rank the triples of a split among their corruptions: all candidates, or a number of them for each side.

    On several GPUs of one host: torchrun --nproc-per-node 4 -m kgverify evaluate ... --save DIR. On several machines:
    --scheduler ADDRESS.

    Args:
        check: Number of candidates that the reference proves as well; chosen by their number if not given.
        save: Save finished parts in a folder or at a URL, and resume from those in it.
    """
    if options.prints_catalogue(evaluator):
        return 0
    required, scheduler = parse_minimum(chosen.minimum), chosen.scheduler
    group = join_process_group()
    leads = group.index == 0
    phases = TimedPhases(show_work if leads else silent_phase)
    silent = TimedPhases(silent_phase)
    if group.size > 1 and save is None:
        raise UserError(f"{group.size} processes need a folder", where="save", fix="give --save DIR")
    if group.size > 1 and scheduler is not None:
        raise UserError(
            f"the workers of the scheduler prove, and torchrun started {group.size} processes for it as well",
            where="scheduler",
            fix="give it to a command without torchrun",
        )
    if not leads:
        # Wait until the leader has checked the options: it alone reports errors.
        group.broadcast(b"")
    with nullcontext() if leads else redirect_stderr(StringIO()), silent("reading", 0):
        sides = options.make_engines(engines, evaluator)
        job = options.make_job(source, queries, proofs, sides)
        run = job.make_run()
        num_candidates = count_candidates(run.graph, run.split, run.queries, run.num_corruptions).sum()
    num_checked = choose_num_checked(int(num_candidates)) if check is None else check
    is_plain = engines.reference == REFERENCE
    with reference_beside(run, num_checked) if leads and is_plain else nullcontext() as beside:
        with silent("building the engine", 0):
            pipeline, expected = build_evaluation_sides(run, job, chosen)
        if leads:
            group.broadcast(b"")
        with (
            nullcontext() if scheduler is None else DaskWorkers(scheduler) as workers,
            stop_between_parts(group) as should_stop,
        ):
            result = evaluate_run(
                run,
                pipeline,
                folder=save,
                part_size=chosen.part_size,
                rank_only=chosen.rank_only,
                accept_changed=chosen.accept_changed,
                group=group,
                workers=workers,
                make=partial(build_evaluated_side, run, sides.engine, chosen),
                phase=phases,
                warn=print_warning,
                should_stop=should_stop,
            )
            if result is None:
                return 0
            if result.missing:
                _explain_missing(result, save, group, is_stopped=should_stop())
        report = report_evaluation(
            run,
            result,
            pipeline,
            num_checked=num_checked,
            reference=beside if is_plain else expected,
            num_processes=group.size,
            minimum=required,
            phase=phases,
        )
    if save is not None:
        write_summary(save, encode_evaluation(report))
    first = min((each.query for each in report.check.differences), default=0) if report.check else 0
    console = make_result_console()
    print_evaluation(report, console, _diff_command(first + 1))
    notes = describe_hits(np.concatenate([part.num_ranked for part in result.results.values()]))
    print_lines(console, [f"note: {note}" for note in notes])
    seconds = (silent.seconds | phases.seconds).items()
    print_lines(console, [f"time: {', '.join(f'{title} {taken:.1f} s' for title, taken in seconds)}"], style="dim")
    if isinstance(pipeline.engine, ExplainedEngine):
        print_lines(console, [describe_execution(pipeline.engine.reasons, pipeline.engine.caches)], style="dim")
    write_encoded(encode_evaluation(report))
    return EXIT_CODES[report.verdict]


@contextmanager
def stop_between_parts(group: ProcessGroup) -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether to stop after the current part; a second Ctrl-C ends the command at once.

    In a group, SIGTERM stops it too: `torchrun` sends it when another process ends.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    pressed: list[float] = []

    def stop(number: int, frame: FrameType | None) -> None:
        note_interrupt()
        if pressed and time.monotonic() - pressed[0] > (_SAME_PRESS if group.size > 1 else 0):
            raise KeyboardInterrupt
        if not pressed and group.index == 0:
            # Not through a console: the signal may have interrupted one that is printing.
            again = "; Ctrl-C again ends at once" if number == signal.SIGINT else ""
            sys.stderr.write(make_lines_visible(f"\nstopping after the current part{again}\n"))
        pressed.append(time.monotonic())

    numbers = [signal.SIGINT, *([signal.SIGTERM] if group.size > 1 else [])]
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield lambda: bool(pressed)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _explain_missing(result: EvaluationResult, save: Path | None, group: ProcessGroup, *, is_stopped: bool) -> None:
    """Raise KeyboardInterrupt if the evaluation was stopped, and UserError if a process ended early."""
    num = len(result.plan.parts)
    done = f"{len(result.results):,} of {num:,} parts are done"
    command = shlex.join(["kgverify", *sys.argv[1:]])
    if group.size > 1:
        command = f"torchrun --nproc-per-node {group.size} -m {command}"
    if not is_stopped:
        raise UserError(
            f"{done}: a process ended early", where=str(save), fix=f"read its error, then resume with: {command}"
        )
    how = f"resume with: {command}" if save is not None else "with --save DIR they would have been kept"
    print_note(f"{done}; {how}")
    raise KeyboardInterrupt


def _diff_command(num_queries: int) -> str:
    """Return a `kgverify diff` command with the same options, for the first queries alone."""
    own = {
        "--save",
        "--json",
        "--check",
        "--memory",
        "--part-size",
        "--queries",
        "--minimum",
        "--scheduler",
        "--accept-changed",
    }
    words = [word for word in typed_words(own)[1:] if word != "--rank-only"]
    if not any(word.split("=")[0] == "--corruptions" for word in words):
        words += ["--corruptions", "all"]
    return shlex.join(["kgverify", "diff", "--queries", str(num_queries), *words])
