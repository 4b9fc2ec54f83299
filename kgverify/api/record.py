"""`kgverify.record`: run one engine and write its trace."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from kgverify.api.inputs import (
    EngineLike,
    GraphLike,
    check_compiled_options,
    check_reference_workers,
    make_pipeline,
    make_run,
)
from kgverify.engines.policy import Policy
from kgverify.engines.table import COMPILED, REFERENCE
from kgverify.errors import UserError
from kgverify.files.remote import find_local, find_remote, sent_to
from kgverify.program.limits import Limits
from kgverify.progress import Progress, no_progress
from kgverify.runs.fan_out import pipeline_over, reference_over
from kgverify.runs.parts import describe_work
from kgverify.trace.files.manifest import MANIFEST
from kgverify.trace.model.levels import TraceLevel, parse_level
from kgverify.verification.record import SHARD_STEPS, Recording
from kgverify.verification.record import record as record_run


def record(
    graph: GraphLike,
    path: str | Path,
    engine: EngineLike | None = None,
    *,
    reference: EngineLike | None = None,
    rules: str | Path | None = None,
    split: str = "test",
    queries: int = 20,
    corruptions: int | str = 50,
    seed: int = 0,
    policy: str | Policy = "shortest",
    limits: Limits | None = None,
    mode: str = "auto",
    device: str = "auto",
    precision: str = "float32",
    slots: int | None = None,
    faults: str | Sequence[str] = (),
    jobs: int = 1,
    scheduler: str | None = None,
    level: str = "steps",
    archive: bool = False,
    shard_steps: int = SHARD_STEPS,
    resume: bool = False,
    accept_changed: Sequence[str] = (),
    overwrite: bool = False,
    progress: Progress = no_progress,
) -> Recording:
    """Run one engine and write its trace, so that `kgverify.compare` can compare it later or elsewhere.

    The trace is written while the engine proves. An interrupted recording leaves `<path>.partial` and can be resumed.

    Args:
        graph: The name of a graph, its path, or a `KnowledgeGraph`; see `kgverify.verify`.
        path: The trace: a file, or a folder of shards if it is large. At a URL such as `s3://bucket/name` it appears once it
            is complete; until then it is in a folder for temporary files.
        engine: The engine to record, as for `kgverify.verify`; the compiled evaluator if neither is given.
        reference: The engine to record, as the reference of a later comparison: a foreign one gets the second
            implementation of corruptions and ranks. Give either `engine` or `reference`.
        rules: A file of rules that replaces those of the graph.
        split: The split whose triples are the queries.
        queries: Number of queries, from the beginning of the split.
        corruptions: Number of corruptions for each query and side, or `"all"`.
        seed: Seed of the corruptions and of a random policy.
        policy: `"shortest"`, `"two_tower"`, `"trained"`, the path of a safetensors file, or a policy.
        limits: Limits of a derivation; `Limits()` if not given.
        mode: Mode of the compiled evaluator.
        device: Device of the compiled evaluator.
        precision: Precision of the compiled evaluator's policy.
        slots: Derivations that the compiled evaluator proves at the same time.
        faults: Faults to plant in the compiled evaluator.
        jobs: Processes in which kgverify's reference prover proves.
        scheduler: Address of a dask scheduler whose workers prove, with any engine.
        level: The level of the trace: `"digests"`, `"compact"` (clauses and scores), `"steps"`, or `"deep"` (also the
            outputs of the stages).
        archive: Compress the file as far as HDF5's filters can.
        shard_steps: Steps that are committed at once; a longer trace becomes a folder of shards.
        resume: Resume an interrupted recording.
        accept_changed: Names of changed code, such as `"helper.py"`, whose candidates are resumed nevertheless.
        overwrite: Replace a trace that exists already.
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
    remote, kept = find_remote(path), parse_level(level, "--level")
    path = find_local(path) if remote is None else Path(path)
    if (path.exists() if remote is None else remote.exists()) and not (overwrite or resume):
        raise UserError(
            "exists already",
            where=str(path if remote is None else remote.url),
            fix="choose another path, or overwrite it: --force, in Python overwrite=True",
        )
    if engine is not None and reference is not None:
        raise UserError("records one engine, and two are given", where="--reference", fix="leave one of them out")
    where = "--engine" if reference is None else "--reference"
    engine = engine or reference or COMPILED
    is_reference = engine == REFERENCE
    check_reference_workers(
        jobs, scheduler, why_none="" if is_reference or jobs == 1 else "the engine under test proves in this process"
    )
    if scheduler is not None and not is_reference and kept is TraceLevel.DEEP:
        raise UserError(
            "level deep takes every step again in this process",
            where="--scheduler",
            fix="leave it out, or --level deep",
        )
    check_compiled_options(engine, mode=mode, device=device, precision=precision, slots=slots, faults=faults)
    run = make_run(
        graph,
        rules=rules,
        split=split,
        queries=queries,
        corruptions=corruptions,
        seed=seed,
        policy=policy,
        limits=limits,
    )
    make = partial(
        make_pipeline,
        engine,
        run,
        where=where,
        mode=mode,
        device=device,
        precision=precision,
        slots=slots,
        faults=faults,
        work=describe_work(run, records=True),
    )
    if remote is not None:
        remote.check_writable()
    with (
        nullcontext(path) if remote is None else sent_to(remote, MANIFEST) as local,
        reference_over(run, jobs=jobs, scheduler=scheduler)
        if is_reference
        else nullcontext(make())
        if scheduler is None
        else pipeline_over(scheduler, make) as pipeline,
    ):
        recording = record_run(
            run,
            pipeline,
            local,
            resume=resume,
            accept_changed=accept_changed,
            # Another process may have finished it in the meantime.
            overwrites=overwrite or resume,
            progress=progress,
            shard_steps=shard_steps,
            level=kept,
            is_archived=archive,
        )
    return recording if remote is None else replace(recording, path=remote.url)
