"""From the parts of an evaluation to its report."""

import numpy as np

from kgverify import __version__
from kgverify.evaluation.evaluate import Harvest
from kgverify.evaluation.spot_check import check_sample
from kgverify.program.outcomes import Outcome
from kgverify.ranking.metric import compute_metrics
from kgverify.report.evaluation import EvaluationReport
from kgverify.runs.progress import Phase, silent_phase
from kgverify.runs.run import Run
from kgverify.trace.model.columns import Rankings
from kgverify.trace.model.header import EngineInfo


def report_evaluation(
    run: Run,
    harvest: Harvest,
    engine: EngineInfo,
    *,
    num_checked: int,
    num_processes: int = 1,
    phase: Phase = silent_phase,
) -> EvaluationReport:
    """The report of an evaluation of which no part is missing; so many candidates are proved by the reference as well."""
    results = [harvest.results[part.number] for part in harvest.plan.parts]
    rankings = Rankings(*map(np.concatenate, zip(*(result.rankings for result in results), strict=True)))
    by_outcome = sum((result.num_outcomes.sum(0, np.int64) for result in results), np.zeros(len(Outcome), np.int64))
    true_outcomes = np.bincount(np.concatenate([result.outcome for result in results]), minlength=len(Outcome))
    num_candidates = int(rankings.num_ranked.sum(dtype=np.int64))
    smallest_gap = min(float(result.smallest_gap) for result in results)
    check = None
    if num_checked:
        with phase("proving some by the reference", num_checked) as progress:
            check = check_sample(run, results, num_checked, engine.score_error, progress)
    return EvaluationReport(
        kgverify=__version__,
        graph=run.graph.name,
        split=run.split,
        num_queries=len(run.queries),
        num_corruptions=run.num_corruptions,
        seed=run.seed,
        policy=run.policy.name,
        policy_sha256=run.policy.info.sha256,
        limits=run.limits,
        engine=engine,
        identity=harvest.identity.sha256,
        metrics=compute_metrics(rankings),
        num_rankings=len(rankings.query),
        num_candidates=num_candidates,
        rank_only=harvest.plan.rank_only,
        num_left_out=num_candidates - int(by_outcome.sum()),
        outcomes=_named(by_outcome.tolist()),
        true_outcomes=_named(true_outcomes.tolist()),
        num_limited=sum(int(result.num_limited.sum()) for result in results),
        num_choices=sum(int(result.num_choices) for result in results),
        num_rescored=sum(int(result.num_rescored) for result in results),
        smallest_gap=smallest_gap if np.isfinite(smallest_gap) else None,
        num_parts=len(results),
        num_parts_resumed=harvest.num_resumed,
        num_processes=num_processes,
        seconds=harvest.seconds,
        warm_up_seconds=harvest.warm_up_seconds,
        candidates_per_second=harvest.num_candidates / harvest.seconds if harvest.num_candidates else None,
        check=check,
    )


def _named(counts: list[int]) -> dict[str, int]:
    return {outcome.name.lower(): counts[outcome] for outcome in (*list(Outcome)[1:], Outcome.OPEN)}
