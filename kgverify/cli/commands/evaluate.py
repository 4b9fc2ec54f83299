"""`kgverify evaluate`: rank many candidates with the compiled evaluator, in parts that can be gone on with."""

import re
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Annotated, Final

import typer

from kgverify.cli import options
from kgverify.cli.options import naming_options
from kgverify.cli.progress import check_writable, make_error_console, make_result_console, show_work, write_result
from kgverify.cli.run_options import GraphOptions, ProofOptions, RunOptions, with_run_options
from kgverify.engines.protocol import ExplainedEngine
from kgverify.errors import UserError
from kgverify.evaluation.evaluate import EvaluationResult, ProcessGroup, join_process_group
from kgverify.evaluation.evaluate import evaluate as evaluate_run
from kgverify.evaluation.evaluation_report import report_evaluation
from kgverify.evaluation.part_store import SUMMARY
from kgverify.evaluation.proving import explain_out_of_memory
from kgverify.faults.plant import compiled_pipeline_with_faults
from kgverify.report.evaluation import encode_evaluation, print_evaluation
from kgverify.report.render.terminal import describe_execution
from kgverify.runs.parts import choose_batch
from kgverify.runs.progress import silent_phase

_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SAME_PRESS: Final = 1.0
"""Seconds in which, in a team, a second Ctrl-C is the first: `torchrun` passes on what the terminal has sent already."""


@with_run_options()
def evaluate(
    *,
    source: GraphOptions,
    queries: Annotated[
        int | None, typer.Option(help="The first so many triples of the split; all if not given.")
    ] = None,
    corruptions: options.Corruptions = "all",
    proofs: ProofOptions,
    device: options.Device = "auto",
    mode: options.Mode = "auto",
    precision: options.Precision = "float32",
    slots: options.Slots = None,
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Most memory of the device, e.g. 8GiB; half of what is free if not given."),
    ] = None,
    part_size: Annotated[
        int | None, typer.Option(min=1, help="Most candidates of a part; by their number and the device if not given.")
    ] = None,
    check: Annotated[
        int, typer.Option(min=0, help="So many candidates, drawn by the seed, are proved by the reference as well.")
    ] = 256,
    rank_only: Annotated[
        bool,
        typer.Option("--rank-only", help="Do not prove what does not follow and so cannot matter for a rank."),
    ] = False,
    fault: options.Faults = None,
    save: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep the parts in a folder; go on with those that are there.")
    ] = None,
    json_path: options.JsonPath = None,
) -> None:
    """Rank the triples of a split among their corruptions: every candidate that there is, or so many for each side.

    On several GPUs of one host: torchrun --nproc-per-node 4 -m kgverify evaluate ... --save DIR
    """
    budget = parse_memory(memory)
    team = join_process_group()
    leads = team.index == 0
    if team.size > 1 and save is None:
        raise UserError(f"{team.size} processes need a folder", where="--save", fix="give --save DIR")
    if leads:
        check_writable(json_path)
    else:
        # What the leader finds wrong with the options it says alone.
        team.broadcast(b"")
    with nullcontext() if leads else redirect_stderr(StringIO()):
        run = RunOptions(source, sys.maxsize if queries is None else queries, corruptions, proofs).build()
    with naming_options(), explain_out_of_memory():
        layout = choose_batch(
            run, device=device, mode=mode, memory=budget, slots=slots, part_size=part_size, rank_only=rank_only
        )
        pipeline = compiled_pipeline_with_faults(
            run, fault or (), mode=mode, device=device, layout=layout, precision=precision
        )
    if leads:
        team.broadcast(b"")

    def warn(text: str) -> None:
        make_error_console().print(f"warning: {text}", style="yellow", markup=False, highlight=False, soft_wrap=True)

    with stopping_at_leisure(team) as should_stop:
        harvest = evaluate_run(
            run,
            pipeline,
            folder=save,
            part_size=part_size,
            rank_only=rank_only,
            group=team,
            phase=show_work if leads else silent_phase,
            warn=warn,
            should_stop=should_stop,
        )
        if harvest is None:
            return
        if harvest.missing:
            _say_how_to_go_on(harvest, save, team, is_stopped=should_stop())
    report = report_evaluation(
        run, harvest, pipeline.engine.info, num_checked=check, num_processes=team.size, phase=show_work
    )
    if save is not None:
        write_result(encode_evaluation(report), str(save / SUMMARY))
    first = min((each.query for each in report.check.differences), default=0) if report.check else 0
    print_evaluation(report, make_result_console(json_path), _diff_command(first + 1))
    if isinstance(pipeline.engine, ExplainedEngine):
        reasons = describe_execution(pipeline.engine.reasons, pipeline.engine.caches)
        make_result_console(json_path).print(reasons, style="dim", markup=False, highlight=False, soft_wrap=True)
    if json_path is not None:
        write_result(encode_evaluation(report), json_path)
    raise typer.Exit(0 if report.is_sound else 1)


def parse_memory(text: str | None) -> int | None:
    """Bytes of `8GiB`, `500M` or `1000000`. UserError for anything else."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if found is None or not float(found[1]):
        raise UserError(f"expected a size, found {text!r}", where="--memory", fix="give one such as 8GiB or 500MiB")
    return int(float(found[1]) * _UNITS[found[2]])


@contextmanager
def stopping_at_leisure(team: ProcessGroup) -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed; pressed again it ends the command at once. In a team, so does the end of another."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    pressed: list[float] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if pressed and time.monotonic() - pressed[0] > (_SAME_PRESS if team.size > 1 else 0):
            raise KeyboardInterrupt
        if not pressed and team.index == 0:
            # No console: the handler may have come in the middle of one's line.
            again = "; Ctrl-C again ends at once" if number == signal.SIGINT else ""
            sys.stderr.write(f"\nending after the part in flight{again}\n")
        pressed.append(time.monotonic())

    numbers = [signal.SIGINT, *([signal.SIGTERM] if team.size > 1 else [])]
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield lambda: bool(pressed)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say_how_to_go_on(harvest: EvaluationResult, save: Path | None, team: ProcessGroup, *, is_stopped: bool) -> None:
    """KeyboardInterrupt if it was stopped; UserError if parts are missing that a process should have done."""
    num = len(harvest.plan.parts)
    done = f"{len(harvest.results):,} of {num:,} parts are done"
    command = shlex.join(["kgverify", *sys.argv[1:]])
    if team.size > 1:
        command = f"torchrun --nproc-per-node {team.size} -m {command}"
    if not is_stopped:
        raise UserError(
            f"{done}: a process ended early", where=str(save), fix=f"look at what it said, then go on with: {command}"
        )
    on = f"go on later with: {command}" if save is not None else "with --save DIR they would have been kept"
    make_error_console().print(f"{done}; {on}", highlight=False, markup=False, soft_wrap=True)
    raise KeyboardInterrupt


def _diff_command(num_queries: int) -> str:
    """The same options for `kgverify diff`, on the first so many queries."""
    own = {"--save", "--json", "--check", "--memory", "--part-size", "--queries"}
    words: list[str] = []
    is_value = False
    for word in sys.argv[2:]:
        if word == "--rank-only":
            continue
        if is_value:
            is_value = False
        elif word in own:
            is_value = True
        elif word.split("=")[0] not in own:
            words.append(word)
    if not any(word.split("=")[0] == "--corruptions" for word in words):
        words += ["--corruptions", "all"]
    return shlex.join(["kgverify", "diff", "--queries", str(num_queries), *words])
