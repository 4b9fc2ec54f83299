"""`kgverify record`: run one engine and keep its trace."""

import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from kgverify.cli import options
from kgverify.cli.options import check_reference_workers, naming_options
from kgverify.cli.progress import (
    check_writable,
    make_error_console,
    make_result_console,
    show_phase,
    typed_command,
    write_result,
)
from kgverify.cli.run_options import RunOptions, with_run_options
from kgverify.cli.signals import Ended, ending_on_signals
from kgverify.engines.protocol import ExplainedEngine
from kgverify.errors import UserError, suggest
from kgverify.faults.plant import compiled_pipeline_with_faults
from kgverify.report.render.terminal import describe_execution
from kgverify.runs.fan_out import reference_over
from kgverify.runs.run import Pipeline, Run
from kgverify.trace.files.output_path import count_safe, partial_of
from kgverify.trace.model.levels import parse_level
from kgverify.verification.record import SHARD_STEPS, Recording, choose_recording_layout
from kgverify.verification.record import record as record_run

ENGINES = ("reference", "compiled")


@with_run_options()
def record(
    engine: Annotated[str, typer.Option(help="reference or compiled.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE.h5", help="Where the trace goes.")],
    run_options: RunOptions,
    device: options.Device = "auto",
    mode: options.Mode = "auto",
    precision: options.Precision = "float32",
    slots: options.Slots = None,
    fault: options.Faults = None,
    jobs: options.Jobs = 1,
    scheduler: options.Scheduler = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a recording that was interrupted.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a trace that is there already.")] = False,
    shard_steps: Annotated[
        int, typer.Option(min=1, help="Steps committed at a time; a longer trace becomes a folder of shards.")
    ] = SHARD_STEPS,
    level: Annotated[
        str,
        typer.Option(
            help="Kept of each step: digests, compact (clauses, scores), steps, or deep (what each stage gave)."
        ),
    ] = "steps",
    archive: Annotated[bool, typer.Option("--archive", help="Pack the file as small as HDF5's filters can.")] = False,
    json_path: options.JsonPath = None,
) -> None:
    """Run one engine and write its trace, a file or, where it is large, a folder of shards."""
    if engine not in ENGINES:
        raise UserError(
            f"unknown engine {engine!r}",
            where="--engine",
            fix=suggest(engine, ENGINES) or f"choose {' or '.join(ENGINES)}",
        )
    if fault and engine == "reference":
        raise UserError(
            "faults are planted in the compiled evaluator alone", where="--fault", fix="use --engine compiled"
        )
    kept = parse_level(level, "--level")
    if output.exists() and not (force or resume):
        raise UserError("is there already", where=str(output), fix="choose another path, or overwrite it with --force")
    check_reference_workers(
        jobs, scheduler, has_reference=engine == "reference", why="the compiled evaluator proves in this process"
    )
    check_writable(json_path)
    run = run_options.build()
    with ExitStack() as stack:
        if engine == "reference":
            pipeline = stack.enter_context(reference_over(run, jobs=jobs, scheduler=scheduler))
        else:
            with naming_options():
                # Faults run in ticks of stages, which take more memory than the ticks that these sizes are for.
                layout = None if fault else choose_recording_layout(run, device=device, mode=mode, slots=slots)
                pipeline = compiled_pipeline_with_faults(
                    run, fault or (), mode=mode, device=device, slots=slots, precision=precision, layout=layout
                )
        recording = _record(
            run, pipeline, output, engine, resume=resume, shard_steps=shard_steps, level=kept, is_archived=archive
        )
    if isinstance(pipeline.engine, ExplainedEngine):
        reasons = describe_execution(pipeline.engine.reasons, pipeline.engine.caches)
        make_error_console().print(reasons, style="dim", markup=False, highlight=False, soft_wrap=True)
    resumed = f", {recording.num_resumed:,} of them from before" if recording.num_resumed else ""
    make_result_console(json_path).print(
        f"{recording.path}: {recording.num_candidates:,} candidates{resumed}, {recording.num_steps:,} steps",
        highlight=False,
        markup=False,
    )
    if json_path is not None:
        data = {
            "path": str(recording.path),
            "num_candidates": recording.num_candidates,
            "num_steps": recording.num_steps,
            "num_resumed": recording.num_resumed,
        }
        write_result(msgspec.json.encode(data) + b"\n", json_path)


def _record(run: Run, pipeline: Pipeline, output: Path, engine: str, *, resume: bool, **options: Any) -> Recording:
    """Record with progress shown; of an interrupted one, say what is safe and how to go on."""
    try:
        with ending_on_signals(), show_phase(f"recording {engine}", 0) as progress:
            return record_run(run, pipeline, output, resume=resume, progress=progress, **options)
    except KeyboardInterrupt as error:
        console = make_error_console()
        partial = partial_of(output)
        lines = [f"nothing was recorded yet; {output} is as it was"]
        if partial.is_dir():
            num_candidates, num_steps = count_safe(partial)
            again = typed_command(*([] if resume else ["--resume"]))
            lines = [
                f"{num_candidates:,} candidates with {num_steps:,} steps are safe in {partial}",
                f"go on later with: {again}",
            ]
        for line in lines:
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        if isinstance(error, Ended):
            console.print(f"ended by {signal.Signals(error.number).name}", highlight=False)
            raise typer.Exit(error.exit_code) from None
        raise
