"""`kgverify.evaluate`: rank many candidates."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from kgverify.api.inputs import make_pipeline
from kgverify.arguments import check_fields, checked
from kgverify.comparison.equality import Equality
from kgverify.comparison.exercise.exercise import Minimum
from kgverify.engines.policy import Policy
from kgverify.engines.table import COMPILED, REFERENCE, Capability
from kgverify.errors import UserError
from kgverify.evaluation.evaluate import evaluate as evaluate_run
from kgverify.evaluation.evaluation_report import report_evaluation
from kgverify.evaluation.proving import explain_out_of_memory
from kgverify.evaluation.sampling import LEAST
from kgverify.program.limits import Limits
from kgverify.progress import Phase, silent_phase
from kgverify.report.evaluation import EvaluationReport
from kgverify.runs.dask_workers import DaskWorkers
from kgverify.runs.engine_makers import list_capabilities
from kgverify.runs.job import EngineLike, GraphLike, Job, Queries, Reference, make_job
from kgverify.runs.parts import describe_work
from kgverify.runs.run import Pipeline, Run


def _ignore(text: str) -> None:
    """Drop a warning."""


@dataclass(frozen=True)
class EvaluationOptions:
    """The options of an evaluation: ranking, the check of a sample, and stored parts.

    Attributes:
        part_size: Maximum candidates of a part, after which results are saved; chosen by their number and the device if not
            given.
        check: Number of candidates that the reference proves as well.
        rank_only: Skip candidates that cannot affect a rank, by the least model; for the compiled evaluator.
        minimum: The exercise that the checked candidates require, as for `diff`; `proved=1,rules=1,choices=1` if not given,
            `none` for nothing. Below it `.is_sound` is false.
        accept_changed: Resume although this code changed, such as `helper.py`.
        scheduler: The address of a dask scheduler whose workers prove the parts; docs/machines.md.
        warn: A function that is called with the text of each warning.

    Example:
        >>> import kgverify as kv
        >>> options = kv.EvaluationOptions(check=8, minimum={})
        >>> kv.evaluate("countries", "reference", queries=1, corruptions=3, options=options).is_sound
        True
    """

    part_size: int | None = None
    check: int = LEAST
    rank_only: bool = False
    minimum: str | Minimum | None = None
    accept_changed: Sequence[str] = ()
    scheduler: str | None = None
    warn: Callable[[str], None] = _ignore

    def __post_init__(self) -> None:
        check_fields(self)


DEFAULT_OPTIONS = EvaluationOptions()


@checked
def evaluate(
    graph: GraphLike,
    engine: EngineLike = COMPILED,
    *,
    reference: EngineLike = REFERENCE,
    queries: int | Queries | None = None,
    corruptions: int | str | None = None,
    seed: int | None = None,
    policy: str | Policy = "shortest",
    limits: Limits | None = None,
    options: EvaluationOptions = DEFAULT_OPTIONS,
    save: str | Path | None = None,
) -> EvaluationReport:
    """Rank the triples of a split among their corruptions, by default with the compiled evaluator, without recording steps.

    Args:
        graph: The name of a graph, its path, or a `KnowledgeGraph`; see `kgverify.verify`.
        engine: The engine that proves, as for `kgverify.verify`; the steps of a foreign one are dropped.
        reference: The engine that proves a sample as well; kgverify's reference prover if not given.
        queries: Number of queries, from the beginning of the split; all if not given. Or `kgverify.Queries(...)`.
        corruptions: Number of corruptions for each query and side; `"all"`, the full filtered ranking, if not given.
        seed: Seed of the corruptions and of a random policy.
        policy: `"shortest"`, `"two_tower"`, `"trained"`, the path of a safetensors file, or a policy.
        limits: Limits of a derivation; `kgverify.Limits()` if not given.
        options: How candidates are ranked and checked.
        save: A folder for the finished parts, from which an interrupted evaluation resumes; a path, or a URL such as
            `s3://bucket/name`.

    Returns:
        The report: `.metrics`, `.outcomes`, `.verdict`, and `.is_sound`, which is true if the candidates that the reference
        proved agree.

    Raises:
        UserError: If an argument is wrong, the folder holds another evaluation or parts of other code, or memory is short.

    Example:
        >>> import kgverify as kv
        >>> report = kv.evaluate(
        ...     "countries", kv.Evaluator(mode="eager", device="cpu"), queries=2, corruptions=5
        ... )
        >>> report.is_sound
        True
        >>> round(report.metrics["both.realistic.mean_reciprocal_rank"], 4)
        0.875
    """
    if corruptions is None and not isinstance(queries, Queries):
        corruptions = "all"
    job = make_job(
        graph,
        engine,
        reference,
        queries,
        corruptions=corruptions,
        seed=seed,
        policy=policy,
        limits=limits,
        equality=Equality(minimum=options.minimum),
    )
    return evaluate_job(job, options, save=save)


def evaluate_job(
    job: Job,
    options: EvaluationOptions = DEFAULT_OPTIONS,
    *,
    save: str | Path | None = None,
    phase: Phase = silent_phase,
) -> EvaluationReport:
    """Rank the candidates of a job; see `evaluate`. UserError as there."""
    run = job.make_run()
    pipeline, expected = build_evaluation_sides(run, job, options)
    with nullcontext() if options.scheduler is None else DaskWorkers(options.scheduler) as workers:
        result = evaluate_run(
            run,
            pipeline,
            folder=None if save is None else Path(save),
            part_size=options.part_size,
            rank_only=options.rank_only,
            accept_changed=options.accept_changed,
            workers=workers,
            # The function that is called with warnings stays here; it may not pickle.
            make=partial(build_evaluated_side, run, job.engines.engine, replace(options, warn=_ignore)),
            phase=phase,
            warn=options.warn,
        )
    assert result is not None, "one process leads itself"
    return report_evaluation(
        run,
        result,
        pipeline,
        num_checked=options.check,
        reference=expected,
        minimum=job.equality.required,
        phase=phase,
    )


def build_evaluation_sides(run: Run, job: Job, options: EvaluationOptions) -> tuple[Pipeline, Pipeline | None]:
    """Build the pipeline of the engine, and that of the reference unless it is kgverify's own.

    UserError for an engine that cannot be made, and for a choice that it does not support.
    """
    engine, reference = job.engines.engine, job.engines.reference
    is_plain = reference == REFERENCE or isinstance(reference, Reference)
    has_model = Capability.LEAST_MODEL in list_capabilities(engine)
    if options.rank_only and not (has_model and (is_plain or Capability.LEAST_MODEL in list_capabilities(reference))):
        raise UserError(
            "skips candidates by the least model of kgverify's semantics, which a foreign engine may not have",
            where="rank_only",
            fix="leave it out",
        )
    expected = None if is_plain else make_pipeline(reference, run, where="reference")
    return build_evaluated_side(run, engine, options), expected


def build_evaluated_side(run: Run, engine: EngineLike, options: EvaluationOptions) -> Pipeline:
    """Build the pipeline of the engine, here or on another machine. UserError if the batch does not fit into the memory."""
    with explain_out_of_memory():
        return make_pipeline(engine, run, work=describe_work(run, options.part_size, rank_only=options.rank_only))
