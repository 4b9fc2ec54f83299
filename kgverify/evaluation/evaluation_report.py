"""The report of an evaluation, from the results of its parts."""

import numpy as np

from kgverify import __version__
from kgverify.evaluation.evaluate import EvaluationResult
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
    result: EvaluationResult,
    engine: EngineInfo,
    *,
    num_checked: int,
    num_processes: int = 1,
    phase: Phase = silent_phase,
) -> EvaluationReport:
    """Return the report of an evaluation without missing parts; the reference proves `num_checked` candidates as well."""
    parts = [result.results[part.number] for part in result.plan.parts]
    rankings = Rankings(*map(np.concatenate, zip(*(part.rankings for part in parts), strict=True)))
    by_outcome = sum((part.num_outcomes.sum(0, np.int64) for part in parts), np.zeros(len(Outcome), np.int64))
    true_outcomes = np.bincount(np.concatenate([part.outcome for part in parts]), minlength=len(Outcome))
    num_candidates = int(rankings.num_ranked.sum(dtype=np.int64))
    smallest_gap = min(float(part.smallest_gap) for part in parts)
    check = None
    if num_checked:
        with phase("checking a sample by the reference", num_checked) as progress:
            check = check_sample(run, parts, num_checked, engine.score_error, progress)
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
        identity=result.identity.sha256,
        metrics=compute_metrics(rankings),
        num_rankings=len(rankings.query),
        num_candidates=num_candidates,
        rank_only=result.plan.rank_only,
        num_left_out=num_candidates - int(by_outcome.sum()),
        outcomes=_named(by_outcome.tolist()),
        true_outcomes=_named(true_outcomes.tolist()),
        num_limited=sum(int(part.num_limited.sum()) for part in parts),
        num_choices=sum(int(part.num_choices) for part in parts),
        num_rescored=sum(int(part.num_rescored) for part in parts),
        smallest_gap=smallest_gap if np.isfinite(smallest_gap) else None,
        num_parts=len(parts),
        num_parts_resumed=result.num_resumed,
        num_processes=num_processes,
        seconds=result.seconds,
        warm_up_seconds=result.warm_up_seconds,
        candidates_per_second=result.num_candidates / result.seconds if result.num_candidates else None,
        check=check,
    )


def _named(counts: list[int]) -> dict[str, int]:
    return {outcome.name.lower(): counts[outcome] for outcome in (*list(Outcome)[1:], Outcome.OPEN)}
