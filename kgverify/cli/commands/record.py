"""`kgverify record`: run one engine and keep its trace."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, TypedDict

from cyclopts import Parameter

from kgverify.api.record import record_job
from kgverify.cli import options
from kgverify.cli.output import is_typed
from kgverify.cli.progress import make_result_console, print_lines, print_note, show_phase, typed_command, write_json
from kgverify.engines.table import REFERENCE
from kgverify.errors import UserError, count_of
from kgverify.report.next_steps import NextStep
from kgverify.report.render.terminal import describe_settings
from kgverify.runs.job import Engines, Reference
from kgverify.trace.files.manifest import count_safe, partial_of
from kgverify.verification.record import RecordingOptions


class Recorded(TypedDict):
    """A recorded trace: `kgverify record`.

    num_resumed: the candidates that an earlier, interrupted recording had proved
    accepted:    the changes of code that the user accepted when it was resumed
    """

    path: str
    num_candidates: int
    num_steps: int
    num_resumed: int
    accepted: tuple[str, ...]


def record(
    *,
    output: Annotated[Path, Parameter(alias="-o", metavar="FILE.h5")],
    engine: options.EngineName | None = None,
    reference: options.EngineName | None = None,
    recording: Annotated[RecordingOptions, options.RECORDING] = RecordingOptions(),
    work: Annotated[Reference, options.OWN] = Reference(),
    job: Annotated[options.JobOptions, options.OWN] = options.JobOptions(),
    evaluator: Annotated[options.EvaluatorOptions, options.EVALUATOR] = options.EvaluatorOptions(),
) -> int | None:
    """Run one engine and write its trace: a file or, if it is large, a folder of shards.

    Args:
        output: The trace to write.
        engine: The engine to record: compiled, reference, or your own as MODULE:NAME or FILE.py:NAME.
        reference: Instead of --engine: the engine to record as the reference of a later comparison.
    """
    if is_typed("--engine") and is_typed("--reference"):
        raise UserError("records one engine, and two are given", where="reference", fix="leave one of them out")
    is_reference = reference is not None and not is_typed("--engine")
    recorded = reference if is_reference else engine
    if recorded is None:
        raise UserError(
            "expected an engine to record, found none",
            where="engine",
            fix="give compiled, reference, or your own as MODULE:NAME or FILE.py:NAME",
        )
    try:
        engines = options.SideOptions(options.EngineOptions(recorded), evaluator).make()
        if recorded == REFERENCE:
            engines = Engines(work)
        elif work.jobs is not None:
            raise UserError("is for the reference, which does not run", where="jobs", fix="leave it out")
        chosen = replace(recording, as_reference=is_reference, scheduler=work.scheduler)
        written = record_job(job.make(engines), output, chosen, phase=show_phase)
    except KeyboardInterrupt:
        _explain_interruption(output, resume=recording.resume)
        raise
    if written.reasons:
        print_note(describe_settings(written.reasons), style="dim")
    resumed = f", {written.num_resumed:,} of them from before" if written.num_resumed else ""
    print_lines(
        make_result_console(),
        f"{written.path}: {count_of(written.num_candidates, 'candidate')}{resumed}, {count_of(written.num_steps, 'step')}",
    )
    for change in written.accepted:
        print_note(f"resumed although code changed, as accepted: {change}")
    data: Recorded = {
        "path": str(written.path),
        "num_candidates": written.num_candidates,
        "num_steps": written.num_steps,
        "num_resumed": written.num_resumed,
        "accepted": written.accepted,
    }
    show = NextStep(does="show it in names", command=("kgverify", "show", str(written.path)))
    write_json(data, [show], indent=None)
    return None


def _explain_interruption(output: Path, *, resume: bool) -> None:
    """Print what an interrupted recording has saved, and the command that resumes it."""
    partial = partial_of(output)
    if not partial.is_dir():
        print_note(f"nothing was recorded yet; {output} is unchanged")
        return
    num_candidates, num_steps = count_safe(partial)
    print_note(f"{count_of(num_candidates, 'candidate')} with {num_steps:,} steps are safe in {partial}")
    print_note(f"resume with: {typed_command(*([] if resume else ['--resume']))}")
