"""`kgverify.record`: run one engine and write its trace."""

from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from kgverify.api.inputs import make_pipeline, running
from kgverify.arguments import checked
from kgverify.engines.table import COMPILED, REFERENCE
from kgverify.errors import UserError
from kgverify.files.remote import find_local, find_remote, sent_to
from kgverify.program.limits import Limits
from kgverify.progress import Phase, Progress, no_progress, silent_phase
from kgverify.runs.fan_out import pipeline_over
from kgverify.runs.job import EngineLike, Engines, GraphLike, Job, PolicyLike, Proofs, Queries, Reference, Source
from kgverify.runs.run import describe_work
from kgverify.trace.files.manifest import MANIFEST
from kgverify.trace.model.schema import TraceLevel
from kgverify.verification.record import DEFAULT_OPTIONS, Recording, RecordingOptions
from kgverify.verification.record import record as record_run


@checked
def record(
    graph: GraphLike,
    path: str | Path,
    engine: EngineLike = COMPILED,
    *,
    queries: int | Queries | None = 20,
    corruptions: int | str | None = None,
    seed: int | None = None,
    policy: PolicyLike = "shortest",
    limits: Limits | None = None,
    options: RecordingOptions = DEFAULT_OPTIONS,
    progress: Progress = no_progress,
) -> Recording:
    """Run one engine and write its trace, so that `kgverify.compare` can compare it later or elsewhere.

    The trace is written while the engine proves. An interrupted recording leaves `<path>.partial` and can be resumed.

    Args:
        graph: The name of a graph, its path, or a `KnowledgeGraph`; see `kgverify.verify`.
        path: The trace: a file, or a folder of shards if it is large. At a URL such as `s3://bucket/name` it appears once it
            is complete; until then it is in a folder for temporary files.
        engine: The engine to record, as for `kgverify.verify`.
        queries: Number of queries, or `kgverify.Queries(...)`; see `kgverify.verify`.
        corruptions: Number of corruptions for each query and side, or `"all"`; 50 if not given.
        seed: Seed of the corruptions and of a random policy.
        policy: `"shortest"`, `"two_tower"`, `"trained"`, the path of a safetensors file, or a function
            (goal, resolvents) -> scores; docs/evaluating.md.
        limits: Limits of a derivation; `kgverify.Limits()` if not given.
        options: How the trace is written.
        progress: A function that is called with the number of candidates finished since its last call.

    Returns:
        The path, and the numbers of candidates and steps.

    Raises:
        UserError: If the path exists already or cannot be written, or an argument is wrong.

    Example:
        >>> import kgverify as kv
        >>> recording = kv.record("countries", "reference.h5", "reference", queries=1, corruptions=2)
        >>> recording.num_candidates
        6
    """
    chosen = Queries.choose(queries, corruptions, seed)
    job = Job(Source(graph), chosen, Engines(engine), Proofs(limits, policy))
    return record_job(job, path, options, phase=lambda title, total: nullcontext(progress))


def record_job(
    job: Job, path: str | Path, options: RecordingOptions = DEFAULT_OPTIONS, *, phase: Phase = silent_phase
) -> Recording:
    """Record the engine of a job; see `record`. UserError as there."""
    engine = job.engines.engine
    remote, level = find_remote(path), TraceLevel(options.level)
    path = find_local(path) if remote is None else Path(path)
    if (path.exists() if remote is None else remote.exists()) and not (options.overwrite or options.resume):
        raise UserError(
            "exists already",
            where=str(path if remote is None else remote.url),
            fix="choose another path, or overwrite it: --overwrite, in Python RecordingOptions(overwrite=True)",
        )
    is_own_reference = engine == REFERENCE or isinstance(engine, Reference)
    if options.scheduler is not None and level is TraceLevel.DEEP:
        raise UserError(
            "level deep takes every step again in this process",
            where="scheduler",
            fix="leave it out, or choose another level",
        )
    run = replace(job.make_run(), part=options.part)
    where = "reference" if options.as_reference else "engine"
    if is_own_reference and options.scheduler is not None:
        engine = replace(engine if isinstance(engine, Reference) else Reference(), scheduler=options.scheduler)
    if remote is not None:
        remote.check_writable()
    work = describe_work(run, records=True)
    with ExitStack() as stack:
        local = path if remote is None else stack.enter_context(sent_to(remote, MANIFEST))
        with phase("building the engine", 0):
            pipeline = stack.enter_context(
                running(engine, run, where=where, work=work)
                if options.scheduler is None or is_own_reference
                else pipeline_over(options.scheduler, partial(make_pipeline, engine, run, where=where, work=work))
            )
        recording = record_run(run, pipeline, local, options, phase=phase)
    return recording if remote is None else replace(recording, path=remote.url)
