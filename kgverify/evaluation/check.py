"""The check of an evaluation by the reference: single candidates, whole rankings, and the least model if it was used."""

from typing import Final

import numpy as np

from kgverify.errors import InternalError
from kgverify.evaluation.closure import check_model
from kgverify.evaluation.evaluate import EvaluationResult
from kgverify.evaluation.judge import Judge, Namer, derive_endings, find_missing_candidates
from kgverify.evaluation.part_file import PartResult, Sample
from kgverify.evaluation.proving import may_stop, prove_candidates
from kgverify.evaluation.rank_only import build_model
from kgverify.evaluation.sampling import choose_rankings, choose_single, hash_results, judge_sample
from kgverify.progress import Progress, no_progress
from kgverify.report.evaluation import CheckedAgain, CheckedRankings, SpotCheck
from kgverify.runs.run import Pipeline, Run, reference_pipeline
from kgverify.trace.model.columns import Candidates, join_candidates
from kgverify.trace.model.score_error import accept_score_error

NUM_ALONE: Final = 2
"""The candidates that are proved again by themselves."""


def _prove_alone(pipeline: Pipeline, sample: Sample, expected: Candidates) -> Sample:
    """Let the engine prove the candidates of the longest derivations again, each by itself: a batch hides a loop's last turn."""
    rows = np.argsort(-expected.num_steps.astype(np.int64), kind="stable")[:NUM_ALONE]
    longest = sample.take(rows)
    if not len(rows):
        return longest
    alone = [longest.candidates.take(np.array([i])) for i in range(len(rows))]
    *_, outcome, is_limited, score = join_candidates([prove_candidates(pipeline.engine, each)[0] for each in alone])
    return longest._replace(sample_outcome=outcome, sample_is_limited=is_limited, sample_log_probability=score)


def check_evaluation(
    run: Run,
    pipeline: Pipeline,
    result: EvaluationResult,
    results: PartResult,
    num: int,
    *,
    reference: Pipeline | None = None,
    progress: Progress = no_progress,
) -> SpotCheck:
    """Let the reference derive about `num` candidates: half of them single ones, the others for whole rankings.

    The error that the engine declares, up to the bound computed from the weights, limits the differences. If two scores in a
    derivation are closer than the errors, the engine may choose otherwise than the reference there. This is a near-tie,
    counted apart from the differences.
    """
    reference = reference_pipeline(run) if reference is None else reference
    rank_only, key = result.plan.rank_only, hash_results(result)
    keys = model = None
    is_skipping = int(results.num_outcomes.sum(dtype=np.int64)) < int(results.num_ranked.sum(dtype=np.int64))
    found = result.model
    if rank_only and found is None and is_skipping:
        found = build_model(run, pipeline.engine.info.device)
    if found is not None:
        keys = found.read_keys()
        model = check_model(run.graph.program, keys)
    is_closed = model is not None and model.is_closed
    single = choose_single(results, key, num // 2)
    left = num - len(single.sample_query)
    sample = choose_rankings(run, results, key, left, keys if is_closed else None)
    if not sample.rankings and 0 < int(results.num_ranked.max(initial=0)) <= left:
        raise InternalError("the check chose no ranking, though the largest one is small enough")
    missing = find_missing_candidates(run, results, model)
    atoms = np.concatenate((single.sample_atom, missing.atom, *(each.atoms for each in sample.rankings)))
    error = accept_score_error(pipeline.engine.info, run.policy.info)
    endings = derive_endings(run, reference, atoms, error, progress)
    judge = Judge(run, results, reference, endings, rank_only=rank_only, may_stop=may_stop(pipeline.engine))
    candidates = judge.compare_single(single)
    alone = _prove_alone(pipeline, single, candidates.expected)
    ranks = judge.rank(sample.rankings)
    rankings = judge.compare_rankings(sample.rankings, ranks)
    namer = Namer(run, pipeline, judge)
    again = judge.compare_single(alone)
    differences = [
        *namer.name_missing(missing),
        *namer.name_single(single, candidates),
        *namer.name_single(alone, again),
        *namer.name_rankings(rankings),
    ]
    num_equal = sum(each.is_equal for each in rankings)
    num_wrong = sum(each.wrong is not None for each in rankings)
    num_rankings, num_true = len(results.query), int(single.sample_is_true.sum())
    num_proved = int(results.num_outcomes.sum(dtype=np.int64))
    strata = [(num_rankings, num_true), (num_proved - num_rankings, len(single.sample_query) - num_true)]
    return SpotCheck(
        num_asked=num,
        key=f"{key:016x}",
        num_derived=len(endings.number),
        num_checked=len(candidates.is_equal),
        num_equal=int(candidates.is_equal.sum()),
        num_near_ties=int(candidates.is_near_tie.sum()),
        largest_error=float(candidates.apart[candidates.is_equal].max(initial=0.0)),
        bound=float(candidates.bound[candidates.is_equal].max(initial=0.0)),
        strength=judge_sample(strata),
        rankings=CheckedRankings(
            num_rankings=num_rankings,
            num_checked=len(rankings),
            num_equal=num_equal,
            num_near_ties=len(rankings) - num_equal - num_wrong,
            strength=judge_sample(sample.strata),
        ),
        model=None if model is None else namer.describe_model(model),
        exercise=endings.exercise,
        again=CheckedAgain(len(again.is_equal), int(again.is_equal.sum()), int(again.is_near_tie.sum())),
        differences=tuple(sorted(differences, key=lambda each: (each.query, each.side))),
    )
