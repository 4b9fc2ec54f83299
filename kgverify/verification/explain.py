"""The explanation of differences between two engines: steps are replayed, and causes get conditions and shares of the loss."""

from functools import partial
from inspect import unwrap
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.compare import Comparer
from kgverify.comparison.rankings import compare_rankings
from kgverify.comparison.result import NO_CANDIDATE, Attribution, Cause, Comparison, Verdict
from kgverify.comparison.step_view import StepReader
from kgverify.conditions.batch import Actual, CandidateReader
from kgverify.conditions.describe import Replays, describe_conditions
from kgverify.conditions.experiment import Engines, Rerun
from kgverify.conditions.features import Feature, read_declared
from kgverify.engines.adapters.taps import TapLog
from kgverify.engines.protocol import DescribedEngine, candidate_set
from kgverify.runs.run import Pipeline, Run, build_trace
from kgverify.trace.model.paths import has_paths
from kgverify.trace.model.trace import Trace
from kgverify.verification.attribute import attribute_loss, order_by_loss
from kgverify.verification.lockstep import Compared, Task
from kgverify.verification.planted_changes import check_attribution
from kgverify.verification.recorded_ranks import judge_ranks, recognise_ranks
from kgverify.verification.repair import measure_repairs
from kgverify.verification.replay import Explainer, Replayed
from kgverify.verification.stage_source import find_source


def explain(
    task: Task, compared: Compared, declared: tuple[Feature, ...], *, is_repeating: bool
) -> tuple[Comparison, tuple[Cause, ...], Attribution | None]:
    """Replay the divergent steps, compare the ranks, group the divergences, and find the conditions of their causes.

    The loss of the metric is split over the causes. The attribution is None in lockstep, and without causes or ranks.
    """
    (expected, actual), comparer, comparison = compared.traces, compared.comparer, compared.comparison
    lockstep = task.equality.lockstep
    explainer = Explainer(
        expected,
        comparer,
        compared.views,
        task.engines,
        lockstep=lockstep,
        is_repeating=is_repeating,
        effort=task.effort,
    )
    num_divergences = len(comparison.divergences)
    with task.phase("replaying divergent steps", sum(map(task.effort.replays, range(num_divergences)))) as progress:
        replayed = explainer.replay(comparison.divergences, progress)
    comparison = msgspec.structs.replace(comparison, divergences=tuple(each.divergence for each in replayed))
    comparison = judge_taps(comparison, task.engines[1])
    comparison = compare_rankings(comparison, expected, actual, task.ranks)
    of_ranking = comparison.divergences[len(replayed) :]
    ranked = recognise_ranks(comparison, comparer) if of_ranking else None
    judge = partial(judge_ranks, ranked=ranked)
    divergences, causes = explainer.group([*replayed, *(Replayed(each, None) for each in of_ranking)], judge)
    with task.phase("testing conditions by experiments", 0):
        divergences, causes = describe_conditions(
            causes,
            divergences,
            comparer,
            task.effort.explained,
            replays=Replays(compared.views, [each.outputs for each in replayed], lockstep, comparison.near_ties),
            own=declared,
            find_splits=lambda: {
                split: task.run.graph.queries(split)
                for split in ("valid", "test")
                if len(getattr(task.run.graph, split))
            },
            engines=Engines(task.engines, partial(rerun, task.run, *task.pipelines, expected, comparer)),
        )
    actual_pipeline = task.pipelines[1]
    causes = tuple(msgspec.structs.replace(each, source=find_source(actual_pipeline, each.stage)) for each in causes)
    if not (lockstep or has_paths(expected.columns)):
        with task.phase("taking the expected step once", 0):
            causes = measure_repairs(task, compared, divergences, causes)
    if lockstep or not causes or expected.rankings is None or actual.rankings is None:
        return msgspec.structs.replace(comparison, divergences=divergences), causes, None
    with task.phase("splitting the loss over the causes", 0):
        found = attribute_loss(compared.traces, divergences, causes, task.ranks, effort=task.effort)
    check_attribution(found, expected, actual)
    divergences, causes, found = order_by_loss(divergences, causes, found)
    return msgspec.structs.replace(comparison, divergences=divergences), causes, found


def judge_taps(comparison: Comparison, engine: Any) -> Comparison:
    """Make the verdict INCONCLUSIVE if a tap of the engine under test never fired, and add notes on its taps."""
    log = getattr(unwrap(engine), "tap_log", None)
    if not isinstance(log, TapLog):
        return comparison
    reasons, notes = log.describe(engine.info.name)
    verdict = Verdict.INCONCLUSIVE if reasons else comparison.verdict
    return msgspec.structs.replace(
        comparison, verdict=verdict, reasons=(*comparison.reasons, *reasons), notes=(*comparison.notes, *notes)
    )


def rerun(
    run: Run, expected: Pipeline, actual: Pipeline, trace: Trace, comparer: Comparer, rows: NDArray[np.int64]
) -> Rerun | None:
    """Prove some rows of the expected trace's candidates with the engine under test, and compare the results.

    A candidate that the engine does not return is wrong. Return None if near-ties leave open whether candidates agree.
    """
    columns = trace.reader.gather_candidates(rows)
    proved = actual.engine.prove(candidate_set(columns))
    left = build_trace(run, expected.engine, columns, None)
    right = build_trace(run, actual.engine, proved, None)
    compared = Comparer(left, right, comparer.alike._replace(lockstep=False))
    comparison = compared.compare()
    if comparison.near_ties:
        return None
    is_alike = len(proved.candidates.query) == len(rows)
    c = proved.candidates
    reader = CandidateReader(
        columns.candidates,
        Actual(c.outcome.tolist(), c.num_steps.tolist()) if is_alike else None,
        actual.engine.info,
        comparer.program.origins,
        lambda: (StepReader(columns), StepReader(proved)),
    )
    wrong = {each.candidate for each in comparison.divergences if each.expected != NO_CANDIDATE}
    own = read_declared(actual.engine, proved) if is_alike and isinstance(actual.engine, DescribedEngine) else ()
    return Rerun(wrong, reader, own)
