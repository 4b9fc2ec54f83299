"""The report of an evaluation, with the check by the reference, and its figures recomputed from its rankings."""

from typing import Any

import msgspec
import numpy as np

from kgverify.comparison.exercise.exercise import MINIMUM, Minimum
from kgverify.evaluation.evaluate import EvaluationResult
from kgverify.evaluation.judge import LEAST, check_evaluation
from kgverify.evaluation.parts import PartResult, join_results
from kgverify.program.outcomes import Outcome
from kgverify.progress import Phase, silent_phase
from kgverify.ranking.rank import compute_metrics
from kgverify.report.evaluation import EvaluationReport
from kgverify.runs.run import Pipeline, Run
from kgverify.version import __version__


def report_evaluation(
    run: Run,
    result: EvaluationResult,
    pipeline: Pipeline,
    *,
    num_checked: int = LEAST,
    reference: Pipeline | None = None,
    minimum: Minimum = MINIMUM,
    phase: Phase = silent_phase,
) -> EvaluationReport:
    """Return the report of an evaluation without missing parts.

    num_checked: the candidates that the reference derives
    reference:   the reference's pipeline, if it runs on other processes
    minimum:     the exercise that is required of these candidates
    """
    from kgverify.engines.reference.ranking import compute_metrics as compute_by_reference

    results = join_results(result.results[part.number] for part in result.plan.parts)
    engine = pipeline.engine.info
    check = None
    if num_checked:
        with phase("checking a sample", num_checked) as progress:
            check = check_evaluation(
                run,
                pipeline,
                result,
                results,
                num_checked,
                reference=reference,
                progress=progress,
            )
    report = EvaluationReport(
        kgverify=__version__,
        graph=run.graph.name,
        split=run.split,
        num_corruptions=run.num_corruptions,
        seed=run.seed,
        policy=run.policy.name,
        policy_sha256=run.policy.info.sha256,
        limits=run.limits,
        engine=engine,
        identity=result.identity.sha256,
        rank_only=result.plan.rank_only,
        **_compute_figures(run, results),
        num_parts=len(result.plan.parts),
        num_parts_resumed=result.num_resumed,
        num_processes=result.num_processes,
        seconds=result.seconds,
        warm_up_seconds=result.warm_up_seconds,
        candidates_per_second=result.num_candidates / result.seconds if result.num_candidates else None,
        check=check,
        minimum=dict(minimum),
        accepted=result.accepted,
    )
    metrics = compute_by_reference(results.rankings)
    if reference is not None:
        report = msgspec.structs.replace(report, reference=reference.engine.info.name)
    wrong = find_wrong_figures(run, results, report, metrics)
    return msgspec.structs.replace(report, wrong_figures=wrong)


def _compute_figures(run: Run, results: PartResult) -> dict[str, Any]:
    """Compute the figures of a report that follow from the results of all parts, by field."""
    by_outcome = results.num_outcomes.sum(0, np.int64)
    true_outcomes = np.bincount(results.outcome, minlength=len(Outcome))
    num_candidates = int(results.num_ranked.sum(dtype=np.int64))
    return {
        "num_queries": len(run.queries),
        "metrics": compute_metrics(results.rankings),
        "num_rankings": len(results.query),
        "num_candidates": num_candidates,
        "num_left_out": num_candidates - int(by_outcome.sum()),
        "outcomes": _named(by_outcome.tolist()),
        "true_outcomes": _named(true_outcomes.tolist()),
        "num_limited": int(results.num_limited.sum(dtype=np.int64)),
        **_describe_choices(results),
    }


def _describe_choices(results: PartResult) -> dict[str, Any]:
    gap = results.choices.smallest_gap
    return results.choices._asdict() | {"smallest_gap": gap if np.isfinite(gap) else None}


def _named(counts: list[int]) -> dict[str, int]:
    return {outcome.name.lower(): counts[outcome] for outcome in (*list(Outcome)[1:], Outcome.OPEN)}


def find_wrong_figures(
    run: Run, results: PartResult, report: EvaluationReport, metrics: dict[str, float]
) -> tuple[str, ...]:
    """Describe every figure of the report that does not follow from its rankings, the results of all parts.

    metrics: the reference's, of the same rankings
    """
    return (
        *_check_rankings(run, results, report),
        *_check_counts(results, report),
        *(
            f"{name} is {report.metrics.get(name)}, by the reference {metrics.get(name)}"
            for name in sorted({*metrics, *report.metrics})
            if metrics.get(name) != report.metrics.get(name)
        ),
    )


def _check_rankings(run: Run, results: PartResult, report: EvaluationReport) -> list[str]:
    num = min(run.num_queries, len(run.graph.queries(run.split)))
    asked = np.arange(2 * num)
    found = results.query.astype(np.int64) * 2 + results.side
    wrong = []
    if not np.array_equal(found, asked):
        odd = np.setxor1d(found, asked)
        which = f"; the first: query {odd[0] // 2}, side {odd[0] % 2}" if len(odd) else ", repeated or in another order"
        wrong.append(f"{len(asked):,} rankings were asked for and {len(found):,} were computed{which}")
    if (report.num_queries, report.num_rankings) != (num, len(asked)):
        wrong.append(f"{report.num_rankings:,} rankings of {report.num_queries:,} queries are reported")
    best, worst = results.optimistic, results.pessimistic
    is_rank = (best >= 1) & (best <= worst) & (worst <= results.num_ranked) & (best % 1 == 0) & (worst % 1 == 0)
    if not is_rank.all():
        row = int(np.argmin(is_rank))
        wrong.append(
            f"query {results.query[row]}, side {results.side[row]} has rank {best[row]:g} to {worst[row]:g}"
            f" among {results.num_ranked[row]}"
        )
    return wrong


def _check_counts(results: PartResult, report: EvaluationReport) -> list[str]:
    num_ranked, by_outcome = results.num_ranked.astype(np.int64), results.num_outcomes.astype(np.int64)
    num_proved = by_outcome.sum(1)
    figures = {
        "num_candidates": sum(num_ranked.tolist()),
        "num_limited": sum(results.num_limited.tolist()),
        "num_left_out": sum((num_ranked - num_proved).tolist()),
        **_describe_choices(results),
        "outcomes": {each.name.lower(): sum(by_outcome[:, each].tolist()) for each in Outcome},
        "true_outcomes": {each.name.lower(): results.outcome.tolist().count(each) for each in Outcome},
    }
    wrong = [
        f"{name} is reported as {actual}, and the rankings have {expected}"
        for name, expected in figures.items()
        if expected != (actual := getattr(report, name))
    ]
    is_counted = num_proved <= num_ranked if report.rank_only else num_proved == num_ranked
    if not is_counted.all():
        row = int(np.argmin(is_counted))
        wrong.append(
            f"query {results.query[row]}, side {results.side[row]} has {num_ranked[row]:,} candidates,"
            f" and outcomes of {num_proved[row]:,}"
        )
    return wrong
