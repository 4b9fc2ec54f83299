"""`kgverify.evaluate`: rank many candidates."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from kgverify.api.inputs import EngineLike, GraphLike, check_compiled_options, make_pipeline, make_run
from kgverify.comparison.exercise.minimum import Minimum, parse_minimum
from kgverify.engines.policy import Policy
from kgverify.engines.table import COMPILED, REFERENCE
from kgverify.errors import UserError
from kgverify.evaluation.evaluate import evaluate as evaluate_run
from kgverify.evaluation.evaluation_report import report_evaluation
from kgverify.evaluation.proving import explain_out_of_memory
from kgverify.evaluation.sampling import LEAST
from kgverify.program.limits import Limits
from kgverify.progress import Phase, silent_phase
from kgverify.report.evaluation import EvaluationReport
from kgverify.runs.dask_workers import DaskWorkers
from kgverify.runs.parts import describe_work
from kgverify.runs.run import MOST, Pipeline, Run


def evaluate(
    graph: GraphLike,
    engine: EngineLike = "compiled",
    *,
    reference: EngineLike = "reference",
    rules: str | Path | None = None,
    split: str = "test",
    queries: int | None = None,
    corruptions: int | str = "all",
    seed: int = 0,
    policy: str | Policy = "shortest",
    limits: Limits | None = None,
    mode: str = "auto",
    device: str = "auto",
    precision: str = "float32",
    slots: int | None = None,
    memory: int | None = None,
    part_size: int | None = None,
    check: int = LEAST,
    rank_only: bool = False,
    faults: str | Sequence[str] = (),
    minimum: str | Minimum | None = None,
    save: str | Path | None = None,
    accept_changed: Sequence[str] = (),
    scheduler: str | None = None,
    phase: Phase = silent_phase,
    warn: Callable[[str], None] = lambda text: None,
) -> EvaluationReport:
    """Rank the triples of a split among their corruptions, by default with the compiled evaluator, without recording steps.

    Args:
        graph: The name of a graph, its path, or a `KnowledgeGraph`; see `kgverify.verify`.
        engine: The engine that proves, as for `kgverify.verify`; the steps of a foreign one are dropped.
        reference: The engine that proves a sample as well; kgverify's reference prover if not given.
        rules: A file of rules that replaces those of the graph.
        split: The split whose triples are the queries.
        queries: Number of queries, from the beginning of the split; all if not given.
        corruptions: Number of corruptions for each query and side, or `"all"` for the full filtered ranking.
        seed: Seed of the corruptions and of a random policy.
        policy: `"shortest"`, `"two_tower"`, `"trained"`, the path of a safetensors file, or a policy.
        limits: Limits of a derivation; `Limits()` if not given.
        mode: Mode of the compiled evaluator.
        device: Device of the compiled evaluator.
        precision: Precision of the policy.
        slots: Derivations that are proved at the same time; chosen by the memory if not given.
        memory: The most bytes of the device; half of the free ones if not given.
        part_size: The most candidates of a part, after which results are saved.
        check: Number of candidates that the reference proves as well.
        rank_only: Skip candidates that cannot affect a rank, by the least model; for the compiled evaluator alone.
        faults: Faults to plant in the compiled evaluator.
        minimum: The exercise that the candidates checked require, as for `kgverify.verify`; below it `.is_sound` is false.
        save: A folder for the finished parts, from which an interrupted evaluation resumes; a path, or a URL such as
            `s3://bucket/name`.
        accept_changed: Names of changed code, such as `"helper.py"`, whose parts are resumed nevertheless.
        scheduler: Address of a dask scheduler whose workers prove the parts.
        phase: A function of a title and a total that returns a context, which is called with the progress made.
        warn: A function that is called with the text of each warning.

    Returns:
        The report: `.metrics`, `.outcomes`, `.verdict`, and `.is_sound`, which is true if the candidates that the reference
        proved agree.

    Raises:
        UserError: If an argument is wrong, the folder holds another evaluation or parts of other code, or memory is short.

    Example:
        >>> import kgverify as kv
        >>> report = kv.evaluate("countries", queries=2, corruptions=5, mode="eager", device="cpu", check=10)
        >>> report.is_sound
        True
        >>> round(report.metrics["both.realistic.mean_reciprocal_rank"], 4)
        0.875
    """
    required = parse_minimum(minimum)
    run = make_run(
        graph,
        rules=rules,
        split=split,
        queries=MOST if queries is None else queries,
        corruptions=corruptions,
        seed=seed,
        policy=policy,
        limits=limits,
    )
    options: dict[str, Any] = {
        "mode": mode,
        "device": device,
        "precision": precision,
        "slots": slots,
        "memory": memory,
        "part_size": part_size,
        "rank_only": rank_only,
        "faults": faults,
    }
    pipeline, expected = build_evaluation_sides(run, engine, reference, **options)
    with nullcontext() if scheduler is None else DaskWorkers(scheduler) as workers:
        found = evaluate_run(
            run,
            pipeline,
            folder=None if save is None else Path(save),
            part_size=part_size,
            rank_only=rank_only,
            accept_changed=accept_changed,
            workers=workers,
            make=partial(build_evaluated_side, run, engine, **options),
            phase=phase,
            warn=warn,
        )
    assert found is not None, "one process leads itself"
    return report_evaluation(run, found, pipeline, num_checked=check, reference=expected, minimum=required, phase=phase)


def build_evaluation_sides(
    run: Run, engine: EngineLike, reference: EngineLike, *, rank_only: bool, **options: Any
) -> tuple[Pipeline, Pipeline | None]:
    """Build the pipeline of the engine, and that of the reference unless it is kgverify's own.

    options: as for `build_evaluator`

    UserError for an engine that cannot be made, and for options that do not belong to it.
    """
    given = {name: options[name] for name in ("mode", "device", "precision", "slots", "faults")}
    check_compiled_options(engine, reference, memory=options["memory"], **given)
    if rank_only and (engine != COMPILED or reference not in (COMPILED, REFERENCE)):
        raise UserError(
            "skips candidates by the least model of kgverify's semantics, which a foreign engine may not have",
            where="--rank-only",
            fix="leave it out",
        )
    expected = None
    if reference != REFERENCE:
        faults = options["faults"] if engine != COMPILED else ()
        expected = make_pipeline(reference, run, where="--reference", **given | {"faults": faults})
    return build_evaluated_side(run, engine, rank_only=rank_only, **options), expected


def build_evaluated_side(
    run: Run, engine: EngineLike, *, part_size: int | None, rank_only: bool, **options: Any
) -> Pipeline:
    """Build the pipeline of the engine, here or on another machine; `options` are those of the evaluator.

    UserError if the batch does not fit into the memory.
    """
    with explain_out_of_memory():
        return make_pipeline(engine, run, work=describe_work(run, part_size, rank_only=rank_only), **options)
