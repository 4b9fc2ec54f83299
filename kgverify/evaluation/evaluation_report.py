"""The report of an evaluation, with the check of a sample of its candidates by the reference."""

from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kgverify.engines.protocol import Progress, no_progress
from kgverify.evaluation.evaluate import EvaluationResult
from kgverify.evaluation.part_file import PartResult, Sample, concatenate_samples
from kgverify.program.outcomes import Outcome, Side
from kgverify.ranking.metric import compute_metrics
from kgverify.report.evaluation import Difference, EvaluationReport, SpotCheck
from kgverify.runs.progress import Phase, silent_phase
from kgverify.runs.run import Run, reference_pipeline
from kgverify.trace.model.columns import Columns, Rankings, starts_of
from kgverify.trace.model.header import EngineInfo
from kgverify.version import __version__

_EXACT: Final = 1e-9
"""The largest difference, for each step and in nats, between sums of float64 added in another order."""


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


def check_sample(
    run: Run, results: Iterable[PartResult], num: int, score_error: float, progress: Progress = no_progress
) -> SpotCheck:
    """Prove `num` of the sampled candidates by the reference: half of them true triples, half corruptions, if possible.

    score_error: the error that the engine declares. If two scores in a derivation are closer than the errors, the engine may
    choose otherwise than the reference there. This is a near-tie, counted apart from the differences.
    """
    sample = _choose_sample(results, num)
    if not len(sample.sample_query):
        return SpotCheck(num, 0, 0, 0, 0.0, 0.0, ())
    pipeline = reference_pipeline(run)
    expected = pipeline.engine.prove(sample.candidates, progress)
    error = score_error + pipeline.engine.info.score_error
    num_steps = expected.candidates.num_steps.astype(np.float64)
    bound = num_steps * (2 * error + _EXACT)
    apart = np.abs(sample.sample_log_probability - expected.candidates.log_probability)
    is_same = (sample.sample_outcome == expected.candidates.outcome) & (
        sample.sample_is_limited == expected.candidates.is_limited
    )
    is_same_score = apart <= bound
    differs = ~is_same | ~is_same_score
    is_near_tie = differs & (find_smallest_gaps(expected) <= 2 * error) & (error > 0)
    agrees = ~differs
    rows = np.flatnonzero(differs & ~is_near_tie)
    in_order = rows[np.lexsort((sample.sample_side[rows], sample.sample_query[rows]))]
    return SpotCheck(
        num_asked=num,
        num_checked=len(differs),
        num_equal=int(agrees.sum()),
        num_near_ties=int(is_near_tie.sum()),
        largest_error=float(apart[agrees].max(initial=0.0)),
        bound=float(bound[agrees].max(initial=0.0)),
        differences=tuple(_describe(run, sample, expected, row) for row in in_order.tolist()),
    )


def _choose_sample(results: Iterable[PartResult], num: int) -> Sample:
    """Return the sampled candidates of lowest priority, half of each stratum if possible."""
    sample = concatenate_samples(each.sample for each in results)
    is_true, priority = sample.sample_is_true, sample.sample_priority
    strata = [rows[np.argsort(priority[rows])] for rows in map(np.flatnonzero, (is_true, ~is_true))]
    num_true = max(min(len(strata[0]), num // 2), min(len(strata[0]), num - len(strata[1])))
    return sample.take(np.sort(np.concatenate((strata[0][:num_true], strata[1][: num - num_true]))))


def find_smallest_gaps(columns: Columns) -> NDArray[np.float64]:
    """Return each candidate's smallest gap between a chosen score and the next one, float64 [N]; inf without a choice."""
    num_resolvents = columns.steps.num_resolvents.astype(np.int64)
    starts = starts_of(num_resolvents)
    step = np.repeat(np.arange(len(num_resolvents)), num_resolvents)
    score = columns.resolvents.score.astype(np.float64)
    chosen = starts[:-1] + columns.steps.choice
    gap = score[chosen][step] - score
    gap[chosen] = np.inf
    of_step = np.full(len(num_resolvents), np.inf)
    np.minimum.at(of_step, step, gap)
    smallest = np.full(len(columns.candidates.query), np.inf)
    np.minimum.at(smallest, np.repeat(np.arange(len(smallest)), columns.candidates.num_steps.astype(np.int64)), of_step)
    return smallest


def _describe(run: Run, sample: Sample, expected: Columns, row: int) -> Difference:
    names = run.graph.program.symbols
    predicate, first, second = sample.sample_atom[row].tolist()

    def ended(outcome: int, is_limited: int, log_probability: float) -> str:
        limited = ", limited" if is_limited else ""
        return f"{Outcome(outcome).name.lower().replace('_', ' ')}{limited}, {log_probability:.6g} nats"

    of = expected.candidates
    return Difference(
        query=int(sample.sample_query[row]),
        side=Side(int(sample.sample_side[row])).name.lower(),
        atom=f"{names.predicates[predicate]}({names.constants[first]}, {names.constants[second]})",
        expected=ended(int(of.outcome[row]), int(of.is_limited[row]), float(of.log_probability[row])),
        actual=ended(
            int(sample.sample_outcome[row]),
            int(sample.sample_is_limited[row]),
            float(sample.sample_log_probability[row]),
        ),
    )
