"""`kgverify.evaluate`: rank many candidates."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from kgverify.api.inputs import make_pipeline, running
from kgverify.arguments import check_fields, checked
from kgverify.comparison.equality import Equality
from kgverify.comparison.exercise.exercise import Minimum
from kgverify.engines.policy import SHORTEST
from kgverify.engines.protocol import Engine, Workload
from kgverify.engines.table import COMPILED, REFERENCE, Capability, EngineMaker
from kgverify.errors import UserError
from kgverify.evaluation.aggregate import Aggregate, RuleRanker, read_confidences
from kgverify.evaluation.evaluate import EvaluationSettings
from kgverify.evaluation.evaluate import evaluate as evaluate_run
from kgverify.evaluation.judge import LEAST, choose_num_checked, report_evaluation, report_rules
from kgverify.evaluation.parts import write_summary
from kgverify.evaluation.proving import ProcessGroup, explain_out_of_memory
from kgverify.files.reading import read_json
from kgverify.program.limits import DeclaredLimits, Limits
from kgverify.progress import Phase, silent_phase
from kgverify.ranking.draw import ALL
from kgverify.ranking.intervals import compare_pairs
from kgverify.ranking.rank import describe_hits
from kgverify.report.evaluation import EvaluationComparison, EvaluationReport
from kgverify.report.report import encode_report
from kgverify.runs.engine_makers import list_capabilities
from kgverify.runs.fan_out import DaskWorkers, reference_beside
from kgverify.runs.job import (
    EngineLike,
    Engines,
    GraphLike,
    Job,
    PolicyLike,
    Proofs,
    Queries,
    Reference,
    Source,
    choose_reference,
)
from kgverify.runs.run import Pipeline, Run, describe_work


def _ignore(text: str) -> None:
    """Drop a warning."""


@dataclass(frozen=True)
class EvaluationOptions:
    """The options of an evaluation: ranking, the check of a sample, and stored parts.

    Attributes:
        part_size: Maximum candidates of a part, after which results are saved; chosen by their number and the device if not
            given.
        check: Number of candidates that the reference proves as well; None: chosen by their number.
        rank_only: Skip candidates that cannot affect a rank, by the least model; for the compiled evaluator.
        minimum: The exercise that the checked candidates require, as for `diff`; `proved=1,rules=1,choices=1` if not given,
            `none` for nothing. Below it `.is_sound` is false.
        aggregate: Rank by the confidences of rules instead of proofs: `max`, the highest confidence of a rule that predicts a
            candidate, `max-plus`, all confidences one by one, or `noisy-or`; docs/evaluating.md.
        num_unseen: With aggregate, the number that is added to the predictions of each rule: its confidence is
            right / (predictions + num_unseen).
        accept_changed: Resume although this code changed, such as `helper.py`.
        scheduler: The address of a dask scheduler whose workers prove the parts; docs/evaluating.md.
        warn: A function that is called with the text of each warning.

    Example:
        >>> import kgverify as kv
        >>> options = kv.EvaluationOptions(check=8, minimum={})
        >>> kv.evaluate("countries", "reference", queries=1, corruptions=3, options=options).is_sound
        True
    """

    part_size: int | None = None
    check: int | None = LEAST
    rank_only: bool = False
    minimum: str | Minimum | None = None
    aggregate: Aggregate | None = None
    num_unseen: int = 0
    accept_changed: Sequence[str] = ()
    scheduler: str | None = None
    warn: Callable[[str], None] = _ignore

    def __post_init__(self) -> None:
        check_fields(self)
        if self.num_unseen and self.aggregate is None:
            raise UserError("changes nothing without aggregate", where="num_unseen", fix="give both, or leave it out")
        if self.num_unseen < 0:
            raise UserError(
                f"expected 0 or more, found {self.num_unseen}", where="num_unseen", fix="give another number"
            )


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
    policy: PolicyLike = "shortest",
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
        policy: `"shortest"`, `"two_tower"`, `"trained"`, the path of a safetensors file, or a function
            (goal, resolvents) -> scores; docs/evaluating.md.
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
    chosen, sides = Queries.choose(queries, corruptions, seed), Engines(engine, reference)
    job = Job(Source(graph), chosen, sides, Proofs(limits, policy), Equality(minimum=options.minimum))
    found = evaluate_job(job, options, save=save)
    assert found is not None, "one process leads itself"
    return found.report


class Evaluated(NamedTuple):
    """A finished evaluation: its report, notes on its ranks, and the engine that ran, if one did."""

    report: EvaluationReport
    notes: tuple[str, ...]
    engine: Engine | None


class Unfinished(UserError):
    """An evaluation with missing parts: it was stopped, or a process ended early."""


def evaluate_job(
    job: Job,
    options: EvaluationOptions = DEFAULT_OPTIONS,
    *,
    save: str | Path | None = None,
    phase: Phase = silent_phase,
    group: ProcessGroup | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Evaluated | None:
    """Rank the candidates of a job; see `evaluate`. UserError as there, `Unfinished` if a part is missing.

    group:       the processes that share the work. The result is None in processes that do not lead. They wait for the leader,
                 which alone reports wrong options, before they read their own options
    should_stop: called before each part
    """
    group = ProcessGroup() if group is None else group
    if options.aggregate is not None:
        return _aggregate(job, options, options.aggregate, save, phase, group)
    leads, folder = group.index == 0, None if save is None else Path(save)
    with phase("reading", 0):
        run, num_checked = job.make_run(), options.check
        if num_checked is None:
            num_checked = choose_num_checked(int(run.num_candidates.sum()))
    engine, reference = job.engines.engine, choose_reference(job.engines.reference)
    is_plain = reference == REFERENCE or isinstance(reference, Reference)
    judged = [engine, *([] if is_plain else [reference])]
    with ExitStack() as stack:
        is_default = reference in (REFERENCE, Reference())
        beside = reference_beside(run, num_checked) if is_default else running(reference, run, where="reference")
        expected = stack.enter_context(beside) if leads else None
        with phase("building the engine", 0), explain_out_of_memory():
            if options.rank_only and not all(Capability.LEAST_MODEL in list_capabilities(each) for each in judged):
                raise UserError(
                    "skips candidates by the least model of kgverify's semantics, which a foreign engine may not have",
                    where="rank_only",
                    fix="leave it out",
                )
            pipeline = stack.enter_context(running(engine, run, work=_describe_work(run, options)))
        if leads:
            group.broadcast(b"")
        workers = None if options.scheduler is None else stack.enter_context(DaskWorkers(options.scheduler))
        settings = EvaluationSettings(
            folder=folder,
            part_size=options.part_size,
            rank_only=options.rank_only,
            accept_changed=options.accept_changed,
            group=group,
            workers=workers,
            # The function for warnings stays here, since it may not be picklable.
            make=partial(_build_engine, run, engine, replace(options, warn=_ignore)),
            phase=phase,
            warn=options.warn,
            should_stop=should_stop,
        )
        result = evaluate_run(run, pipeline, settings)
        if result is None:
            return None
        if result.missing:
            done = f"{len(result.results):,} of {len(result.plan.parts):,} parts are done"
            raise Unfinished(f"{done}: a process ended early", where=str(save), fix="read its error, then resume")
        report = report_evaluation(
            run,
            result,
            pipeline,
            num_checked=num_checked,
            reference=expected,
            minimum=job.equality.required,
            phase=phase,
        )
    if folder is not None:
        write_summary(folder, encode_report(report))
    num_ranked = np.concatenate([part.num_ranked for part in result.results.values()])
    return Evaluated(report, tuple(describe_hits(num_ranked)), pipeline.engine)


def _aggregate(
    job: Job, options: EvaluationOptions, method: Aggregate, save: str | Path | None, phase: Phase, group: ProcessGroup
) -> Evaluated:
    """Rank by rule confidences; see `evaluate`."""
    engine, proofs = job.engines.engine, job.proofs
    is_default = engine == COMPILED or (
        isinstance(engine, EngineMaker) and engine.name == COMPILED and not engine.options
    )
    given = {
        "engine and its options": not is_default,
        "policy": proofs.policy not in (SHORTEST.name, SHORTEST),
        "limits": proofs.limits not in (None, DeclaredLimits(), Limits()),
        "save": save is not None,
        "rank_only": options.rank_only,
        "scheduler": options.scheduler is not None or group.size > 1,
    }
    if wrong := next((name for name, is_given in given.items() if is_given), None):
        raise UserError(
            "ranks by the confidences of rules, without an engine, in one process, and stores no parts",
            where="aggregate",
            fix=f"leave {wrong} out",
        )
    with phase("reading", 0):
        run = job.make_run()
    if run.num_corruptions != ALL:
        raise UserError("ranks among all corruptions", where="aggregate", fix="leave corruptions out, or give all")
    confidences = read_confidences(run.graph.program, options.num_unseen)
    with phase("evaluating", 2 * len(run.queries)) as progress:
        results = RuleRanker(run, method, confidences).rank(progress)
    report = report_rules(
        run,
        results,
        method,
        confidences,
        num_unseen=options.num_unseen,
        num_checked=LEAST if options.check is None else options.check,
        minimum=job.equality.required,
        phase=phase,
    )
    return Evaluated(report, tuple(describe_hits(results.num_ranked)), None)


@checked
def compare_evaluations(
    first: EvaluationReport | str | Path, second: EvaluationReport | str | Path, *, accept: Sequence[str] = ()
) -> EvaluationComparison:
    """Compare two evaluations of the same queries, query by query.

    The interval of a difference is that of Student's paired t over the queries. Its degrees of freedom are the number of queries
    that differ, minus one: equal queries tell nothing about the spread of differences. The p-value is that of a sign-flip test.

    Args:
        first: An evaluation, or the file that `kgverify evaluate --json` wrote.
        second: The other one.
        accept: The differences to accept between the two evaluations, such as `["ties"]`.

    Returns:
        The comparison: `.differences` has the `first` and `second` value of each metric of realistic ranks, their `difference`,
        its 95 % interval `low` and `high`, and the `p_value`.

    Raises:
        UserError: If the evaluations have other queries, known triples, candidates, or rules for ties.

    Example:
        >>> import kgverify as kv
        >>> evaluated = [kv.evaluate("countries", "reference", queries=4, corruptions=5, policy=each)
        ...     for each in ("shortest", "trained")]
        >>> found = kv.compare_evaluations(*evaluated).differences["both.realistic.mean_reciprocal_rank"]
        >>> round(found.difference, 4), found.num_differing
        (0.0, 0)
    """
    reports = [each if isinstance(each, EvaluationReport) else read_evaluation(Path(each)) for each in (first, second)]
    one, two = reports
    names = {"triples_sha256": "graph, filter or domains"} | {
        name: name for name in ("split", "num_queries", "num_corruptions", "ties")
    }
    if one.num_corruptions != ALL:
        names["seed"] = "seed of the corruptions"
    different = [
        f"{what}: {str(getattr(one, name))[:60]} and {str(getattr(two, name))[:60]}"
        for name, what in names.items()
        if getattr(one, name) != getattr(two, name) and name not in accept
    ]
    if different:
        raise UserError(
            f"are not of the same queries and candidates: {'; '.join(different)}",
            where="the evaluations",
            fix="evaluate both alike; if that does not affect the ranks: accept=[...] in Python",
        )
    rankings = one.rankings, two.rankings
    if not all(np.array_equal(getattr(rankings[0], name), getattr(rankings[1], name)) for name in _SAME):
        raise UserError("rank other queries or candidates", where="the evaluations", fix="evaluate both alike")
    return EvaluationComparison(
        one.graph, one.split, one.num_queries, one.ranked_by, two.ranked_by, compare_pairs(*rankings)
    )


def read_evaluation(path: Path) -> EvaluationReport:
    """Read the file that `kgverify evaluate --json` wrote. UserError for any other file."""
    fix = "give the file that kgverify evaluate --json wrote"
    return read_json(path, EvaluationReport, purpose="an evaluation", fix=fix)


_SAME: Final = ("query", "side", "num_ranked")
"""The columns of rankings that must be equal in two evaluations."""


def _describe_work(run: Run, options: EvaluationOptions) -> Workload:
    return describe_work(run, options.part_size, rank_only=options.rank_only)


def _build_engine(run: Run, engine: EngineLike, options: EvaluationOptions) -> Pipeline:
    """Build the pipeline of the engine on another machine. UserError if the batch does not fit into memory."""
    with explain_out_of_memory():
        return make_pipeline(engine, run, work=_describe_work(run, options))
