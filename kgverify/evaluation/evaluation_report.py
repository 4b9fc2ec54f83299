"""The report of an evaluation, with the check by the reference."""

from concurrent.futures import Future
from typing import Any, Final

import msgspec
import numpy as np

from kgverify.comparison.exercise.minimum import MINIMUM, Minimum
from kgverify.errors import InternalError
from kgverify.evaluation.check import check_evaluation
from kgverify.evaluation.evaluate import EvaluationResult
from kgverify.evaluation.figures import find_wrong_figures
from kgverify.evaluation.part_file import PartResult, join_results
from kgverify.evaluation.sampling import LEAST
from kgverify.evaluation.self_test import find_altered_figures
from kgverify.program.outcomes import Outcome
from kgverify.ranking.known_draws import check_known_draws
from kgverify.ranking.metric import compute_metrics
from kgverify.report.evaluation import EvaluationReport
from kgverify.runs.progress import Phase, silent_phase
from kgverify.runs.run import Pipeline, Run
from kgverify.version import __version__

_MANY: Final = 1_000_003
"""The factor of a known evaluation's counts, for sums that need more than 32 bits."""

_KNOWN: Final[set[tuple[str, bool]]] = set()
"""The devices, and whether only ranks were wanted, for which this process has given the known answers."""


def report_evaluation(
    run: Run,
    result: EvaluationResult,
    pipeline: Pipeline,
    *,
    num_checked: int = LEAST,
    reference: Pipeline | None = None,
    num_processes: int = 1,
    minimum: Minimum = MINIMUM,
    phase: Phase = silent_phase,
) -> EvaluationReport:
    """Return the report of an evaluation without missing parts.

    num_checked: the candidates that the reference derives
    reference:   the reference's pipeline, if it runs on other processes
    minimum:     the exercise that is required of these candidates

    InternalError if the check does not find a figure that was altered to test it, or a known evaluation gives wrong results.
    """
    from kgverify.engines.reference.ranking import compute_metrics as compute_by_reference

    results = join_results(result.results[part.number] for part in result.plan.parts)
    engine = pipeline.engine.info
    check, known = None, _KnownEvaluations(engine.device, rank_only=result.model is not None)
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
                meanwhile=known.evaluate,
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
        num_processes=num_processes,
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
    if not wrong:
        find_altered_figures(run, results, report, metrics)
        if num_checked and report.is_sound:
            known.check_report(report)
    return msgspec.structs.replace(report, wrong_figures=wrong)


def _compute_figures(run: Run, results: PartResult) -> dict[str, Any]:
    """Compute the figures of a report that follow from the results of all parts, by field."""
    by_outcome = results.num_outcomes.sum(0, np.int64)
    true_outcomes = np.bincount(results.outcome, minlength=len(Outcome))
    num_candidates = int(results.num_ranked.sum(dtype=np.int64))
    smallest_gap = float(results.smallest_gap.min())
    return {
        "num_queries": len(run.queries),
        "metrics": compute_metrics(results.rankings),
        "num_rankings": len(results.query),
        "num_candidates": num_candidates,
        "num_left_out": num_candidates - int(by_outcome.sum()),
        "outcomes": _named(by_outcome.tolist()),
        "true_outcomes": _named(true_outcomes.tolist()),
        "num_limited": int(results.num_limited.sum(dtype=np.int64)),
        "num_choices": int(results.num_choices.sum()),
        "num_rescored": int(results.num_rescored.sum()),
        "smallest_gap": smallest_gap if np.isfinite(smallest_gap) else None,
    }


class _KnownEvaluations:
    """Small evaluations whose results are known, made beside the check of a sample, once in a process for each kind."""

    def __init__(self, device: str, *, rank_only: bool) -> None:
        self._device, self._rank_only = device, rank_only
        self._evaluated = Future[list[tuple[Run, PartResult]]]()

    @property
    def _is_known(self) -> bool:
        return (self._device, self._rank_only) in _KNOWN

    def evaluate(self) -> None:
        """Evaluate them. An error is kept: an evaluation that is wrong itself is reported first."""
        if self._is_known:
            return
        try:
            self._evaluated.set_result(self._evaluate())
        except BaseException as error:
            self._evaluated.set_exception(error)

    def _evaluate(self) -> list[tuple[Run, PartResult]]:
        # Commands that do not evaluate need no reference.
        from kgverify.engines.known_proofs import list_proof_checks
        from kgverify.evaluation.known_answers.checks import check_known_checks
        from kgverify.evaluation.known_answers.evaluations import check_known_evaluation
        from kgverify.evaluation.known_answers.models import check_known_models

        for check in list_proof_checks().values():
            check()
        if self._rank_only:
            check_known_models(self._device)
        check_known_draws()
        evaluated = check_known_evaluation(self._device, with_ranks_only=self._rank_only)
        check_known_checks(evaluated)
        return [(run, known) for run, _, known in evaluated]

    def check_report(self, report: EvaluationReport) -> None:
        """InternalError if a known evaluation was wrong, or is reported wrongly."""
        from kgverify.engines.reference.ranking import compute_metrics as compute_by_reference

        if self._is_known:
            return
        for run, known in self._evaluated.result():
            # More than 2^31 candidates in all.
            large = {name: getattr(known, name) * _MANY for name in ("num_ranked", "num_outcomes", "num_limited")}
            results = join_results([known._replace(**large)])
            of_known = msgspec.structs.replace(report, rank_only=True, **_compute_figures(run, results))
            wrong = find_wrong_figures(run, results, of_known, compute_by_reference(results.rankings))
            if wrong:
                raise InternalError(f"a known evaluation is reported wrongly: {wrong[0]}")
        _KNOWN.add((self._device, self._rank_only))


def _named(counts: list[int]) -> dict[str, int]:
    return {outcome.name.lower(): counts[outcome] for outcome in (*list(Outcome)[1:], Outcome.OPEN)}
