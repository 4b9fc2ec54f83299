"""`kgverify show`: a trace, a derivation or a step in names; or a saved run, divergence by divergence."""

import shlex
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from kgverify.cli.output import settings
from kgverify.cli.progress import make_result_console, print_lines, write_json
from kgverify.cli.stepping import step_through
from kgverify.errors import UserError
from kgverify.report.next_steps import NextStep, read_source, shrink_cause
from kgverify.report.render.terminal import ShownCauses, choose_causes, explain_causes
from kgverify.report.stepper import Stepper, render_position
from kgverify.report.steps import (
    ShownCandidateStep,
    ShownDerivation,
    ShownTrace,
    TraceView,
    render_derivation,
    render_step,
    render_trace,
    view_trace,
)
from kgverify.report.wording import number_of_first
from kgverify.trace.files.manifest import MANIFEST
from kgverify.trace.read.trace_file import TraceFile, find_members
from kgverify.verification.save import REPORT, finish_saving, read_run, read_saved_report


def show(
    path: Path,
    /,
    *,
    candidate: int | None = None,
    step: int | None = None,
    divergence: int | None = None,
    explain: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Show a trace in names; or step through the divergences of a saved run.

    A saved run reads commands, one key each in a terminal, otherwise one line each from standard input: n and p go to the
    next and previous divergence, f and b a step forward and back, s and S through the stages of the step; h lists the
    others.

    Args:
        path: A trace: a file, or a folder of shards. Or the folder that `kgverify diff --save` wrote.
        candidate: For a trace: show the derivation of this candidate.
        step: For a trace: show this step of the candidate.
        divergence: For a saved run: print this divergence, counted from 1, and exit.
        explain: For a saved run: print the condition of each cause, its evidence, and the distribution of its feature; with
            --divergence, only the cause of that one.
    """
    if explain:
        report = read_saved_report(path)
        print_lines(make_result_console(), *explain_causes(report, divergence, path))
        numbers = choose_causes(report, divergence)
        steps = [each for i in numbers for each in (*read_source(report.causes[i]), shrink_cause(report, i, path))]
        write_json(ShownCauses(tuple(report.causes[i] for i in numbers)), steps)
        return
    if path.is_dir():
        finish_saving(path)
        if (path / REPORT).is_file():
            _show_run(path, candidate, step, divergence)
            return
        if not (path / MANIFEST).is_file() and not find_members(path):
            raise UserError(
                f"holds neither {REPORT} of a saved run nor {MANIFEST} of a trace",
                where=str(path),
                fix="give a folder that `kgverify diff --save DIR` wrote, or a trace",
            )
    if divergence is not None:
        raise UserError("a trace has no divergences", where="--divergence", fix="give the folder of a saved run")
    if step is not None and candidate is None:
        raise UserError("a step belongs to a candidate", where="--step", fix="give --candidate as well")
    view = open_view(path)
    data: ShownTrace | ShownDerivation | ShownCandidateStep | None = None
    show_more = ("kgverify", "show", str(path), "--candidate")
    if candidate is None:
        if settings.json_path is not None:
            data = {**view.summary(), "candidates": [view.candidate(i) for i in range(view.num_candidates)]}
        rendered = render_trace(view)
        num, steps = view.num_candidates, [NextStep(does="show the first candidate", command=(*show_more, "0"))]
    elif step is None:
        rendered = render_derivation(data := view.derivation(candidate))
        num, more = data["num_steps"], (*show_more, str(candidate), "--step", "0")
        steps = [NextStep(does="show its first step", command=more)]
    else:
        rendered = render_step(data := view.candidate_step(candidate, step))
        num, more = data["num_steps"] - step - 1, (*show_more, str(candidate), "--step", str(step + 1))
        steps = [NextStep(does="show the next step", command=more)]
    make_result_console().print(rendered)
    write_json(data, steps if num else [])


def open_view(path: Path) -> TraceView:
    """Open a trace to look things up in it."""
    return view_trace(TraceFile(path, is_lazy=True))


def _show_run(folder: Path, candidate: int | None, step: int | None, divergence: int | None) -> None:
    if candidate is not None or step is not None:
        raise UserError(
            "a candidate or a step belongs to a trace, but this is a saved run",
            where=str(folder),
            fix=f"kgverify show {shlex.quote(str(folder / 'expected.h5'))}, or the same with actual.h5",
        )
    run = read_run(folder)
    if settings.json_path is not None and divergence is None:
        divergence = number_of_first(run.report)
    stepper = Stepper(run.report, run.expected, run.actual, run.stepped)
    console = make_result_console()
    if divergence is None:
        step_through(stepper, console)
        return
    stepper.go_to(divergence)
    console.print(render_position(stepper))
    write_json(stepper.data(), stepper.lead_on(folder))
