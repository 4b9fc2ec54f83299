"""`kgverify evaluate`: rank many candidates, by default with the compiled evaluator, part by part."""

import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Annotated

from cyclopts import Parameter, validators

from kgverify.api.evaluate import EvaluationOptions, Unfinished, evaluate_job
from kgverify.cli import options
from kgverify.cli.commands.diff import EXIT_CODES
from kgverify.cli.progress import (
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
from kgverify.interrupts import handle_signals, note_interrupt
from kgverify.progress import TimedPhases
from kgverify.report.evaluation import print_evaluation
from kgverify.report.render.terminal import describe_execution


def evaluate(
    *,
    sides: Annotated[options.SideOptions, options.OWN] = options.SideOptions(),
    job: Annotated[options.AllJobOptions, options.OWN] = options.AllJobOptions(),
    chosen: Annotated[EvaluationOptions, options.EVALUATION] = EvaluationOptions(),
    check: Annotated[int | None, Parameter(validator=validators.Number(gte=0))] = None,
    save: Annotated[Path | None, Parameter(metavar="DIR")] = None,
) -> int:
    """Rank the triples of a split among their corruptions: all candidates, or a number of them for each side.

    Args:
        check: Number of candidates that the reference proves as well; chosen by their number if not given.
        save: Save finished parts in a folder or at a URL, and resume from those in it.
    """
    phases = TimedPhases(show_work)
    started = time.perf_counter()
    made = job.make(sides.make(), Equality(minimum=chosen.minimum))
    phases.seconds["reading"] = time.perf_counter() - started
    chosen = replace(chosen, check=check, warn=print_warning)
    with stop_between_parts() as should_stop:
        try:
            found = evaluate_job(made, chosen, save=save, phase=phases, should_stop=should_stop)
        except Unfinished as error:
            command = shlex.join(["kgverify", *sys.argv[1:]])
            how = f"resume with: {command}" if save is not None else "with --save DIR they would have been kept"
            print_note(f"{error.message.partition(':')[0]}; {how}")
            raise KeyboardInterrupt from None
    report = found.report
    first = min((each.query for each in report.check.differences), default=0) if report.check else 0
    console = make_result_console()
    print_evaluation(report, console, _diff_command(first + 1))
    print_lines(console, *[f"note: {note}" for note in found.notes])
    print_lines(console, f"time: {', '.join(f'{title} {s:.1f} s' for title, s in phases.seconds.items())}", style="dim")
    if isinstance(found.engine, ExplainedEngine):
        print_lines(console, describe_execution(found.engine.reasons, found.engine.caches), style="dim")
    write_json(report)
    return EXIT_CODES[report.verdict]


@contextmanager
def stop_between_parts() -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether to stop after the current part; a second Ctrl-C ends the command at once."""
    pressed: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        note_interrupt()
        if pressed:
            raise KeyboardInterrupt
        # Not through a console: the signal may have interrupted one that is printing.
        sys.stderr.write("\nstopping after the current part; Ctrl-C again ends at once\n")
        pressed.append(number)

    with handle_signals([signal.SIGINT], stop):
        yield lambda: bool(pressed)


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
        "--jobs",
        "--scheduler",
        "--accept-changed",
    }
    words = [word for word in typed_words(own)[1:] if word != "--rank-only"]
    if not any(word.split("=")[0] == "--corruptions" for word in words):
        words += ["--corruptions", "all"]
    return shlex.join(["kgverify", "diff", "--queries", str(num_queries), *words])
