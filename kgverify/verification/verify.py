"""The verification of a pipeline against another on the same run, and the comparison of two recorded traces."""

import os
import platform
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.classify import Surroundings, classify, group_causes
from kgverify.comparison.compare import KEPT, Comparer
from kgverify.comparison.exercise.minimum import MINIMUM, Minimum
from kgverify.comparison.goals import Rebuilds
from kgverify.comparison.inference.dialects import name_in_dialect
from kgverify.comparison.modulo.policy import DUPLICATES
from kgverify.comparison.rankings import NO_ROWS, compare_rankings
from kgverify.comparison.recorded.evidence import withhold_agreement
from kgverify.comparison.result import Comparison, Verdict
from kgverify.comparison.source import MemorySource, StepSource, has_steps
from kgverify.comparison.step_view import outcome_name
from kgverify.conditions.declared import read_declared
from kgverify.conditions.describe import describe_conditions
from kgverify.engines.protocol import ExplainedEngine
from kgverify.errors import InternalError
from kgverify.program.outcomes import Outcome
from kgverify.progress import Phase, Progress, no_progress, silent_phase
from kgverify.ranking.metric import compute_metrics, describe_hits
from kgverify.report.content import Determinism, Environment, Metrics, Outcomes
from kgverify.report.report import Report, build_report
from kgverify.runs.run import Pipeline, Run, build_trace, describe_ranking, rank_alike
from kgverify.trace.model.columns import Candidates, Rankings
from kgverify.trace.model.levels import has_goals
from kgverify.trace.model.score_error import OWN_ENGINES, ScoreError, find_float_type, name_float32
from kgverify.trace.model.trace import Trace
from kgverify.trace.read.trace_file import TraceFile, read_trace
from kgverify.verification.attribute import attribute_loss
from kgverify.verification.compilation_log import CompilationLog
from kgverify.verification.effort import FULL, Effort
from kgverify.verification.evidence import describe_same, judge_exercise
from kgverify.verification.lockstep import compare_in_lockstep, describe_lockstep, follow_near_ties, lockstep_comparer
from kgverify.verification.rebuild import Rebuilder
from kgverify.verification.recorded_ranks import judge_ranks, recognise_ranks, split_recorded_loss
from kgverify.verification.repetition import judge_repetition
from kgverify.verification.replay import Explainer, Replayed
from kgverify.verification.rerun import rerun
from kgverify.verification.rounding import (
    EngineRun,
    bound_recorded,
    describe_rounding,
    name_way_out,
    settle_score_error,
)
from kgverify.verification.score_sources import SCORES_BEFORE
from kgverify.verification.self_testing.planted_runs import (
    RememberingEngine,
    check_attribution,
    check_consistency,
    check_numbers,
    plant_in_recorded,
    plant_in_verification,
)
from kgverify.verification.self_testing.second_opinion import check_sample
from kgverify.version import __version__


@dataclass(frozen=True, eq=False)
class Verification:
    """A report and its two traces.

    stepped: in lockstep, the actual engine's steps from the expected goals: each a candidate with one step, in the order
             of the expected steps
    """

    report: Report
    expected: Trace
    actual: Trace
    stepped: Trace | None = None

    def excerpt(self) -> Trace:
        """Return the expected trace, which is in memory."""
        return self.expected


def verify(
    run: Run,
    expected: Pipeline,
    actual: Pipeline,
    *,
    lockstep: bool = False,
    check_determinism: bool = True,
    score_error: str | float | None = None,
    modulo: Collection[str] | None = None,
    minimum: Minimum = MINIMUM,
    tests_itself: bool = True,
    effort: Effort = FULL,
    phase: Phase = silent_phase,
) -> Verification:
    """Run both pipelines and compare their steps. score_error: of the actual side, accepted instead of the judge's bound.

    modulo: the kinds of differences that are benign; None: names, if an engine numbers variables its own way.

    By default each engine follows its own choices. With `lockstep`, the actual engine takes each step from the expected
    goal, which separates independent faults from consequences; the metrics are still those of the free run.

    minimum: the exercise that AGREE requires of both sides

    tests_itself: whether AGREE is given only after the comparison reported changes planted in all that it compared;
    InternalError otherwise
    """
    compilations = CompilationLog()
    ran = (
        _run_pipeline(run, expected, "expected", check_determinism, phase, compilations),
        _run_pipeline(run, actual, "actual", check_determinism, phase, compilations),
    )
    recorded = ran[0].trace, ran[1].trace
    own = read_declared(actual.engine, recorded[1].columns)
    with phase("measuring the rounding of scores", 0):
        accepted = settle_score_error(ran, score_error)
    determinism, unrepeated = judge_repetition(run, ran, accepted, modulo)
    traces = rank_alike(run, (expected, actual), recorded)
    infos = expected.engine.info, actual.engine.info
    hidden = tuple(dict.fromkeys(info.name for info in infos if lockstep and not has_steps(info)))
    lockstep = lockstep and not hidden
    comparer = Comparer(*traces, score_error=accepted, modulo=modulo)
    stepper = lockstep_comparer(run, traces[0], actual, phase, accepted, modulo) if lockstep else None
    remembered = RememberingEngine(actual.engine)
    if stepper is not None:
        comparison, views = compare_in_lockstep(stepper, comparer)
    else:
        comparison, views = follow_near_ties(
            comparer, comparer.compare(), run, actual._replace(engine=remembered), phase
        )

    expected_rank, actual_rank = (partial(_rank, run, each) for each in (expected, actual))
    explainer = Explainer(
        traces[0],
        comparer,
        views,
        (expected.engine, actual.engine),
        lockstep=lockstep,
        is_repeating=not unrepeated,
        effort=effort,
    )
    with phase("replaying divergent steps", 0):
        replayed = explainer.replay(comparison.divergences)
    comparison = msgspec.structs.replace(comparison, divergences=tuple(each.divergence for each in replayed))
    comparison = compare_rankings(comparison, traces[0], traces[1], (expected_rank, actual_rank))
    of_ranking = comparison.divergences[len(replayed) :]
    divergences, causes = explainer.group([*replayed, *(Replayed(each, None) for each in of_ranking)])
    outputs = [each.outputs for each in replayed]
    divergences, causes = describe_conditions(
        causes,
        divergences,
        comparer,
        views,
        outputs,
        lockstep=lockstep,
        own=own,
        engines=(expected.engine, actual.engine),
        run_again=partial(rerun, run, expected, actual, traces[0], comparer),
        most=effort.explained,
    )
    comparison = msgspec.structs.replace(comparison, divergences=divergences)
    is_explained = determinism.expected is not False and any(each.situation == SCORES_BEFORE for each in causes)
    if unrepeated and is_explained:
        # An engine that hands out scores of the call before cannot repeat itself: that is its fault.
        comparison = msgspec.structs.replace(comparison, notes=(*comparison.notes, *unrepeated))
    elif unrepeated:
        reasons = (*comparison.reasons, *unrepeated)
        comparison = msgspec.structs.replace(comparison, verdict=Verdict.INCONCLUSIVE, reasons=reasons)
    parts = [each.comparison for each in (comparer, stepper) if each is not None]
    for each in (comparer, stepper) if tests_itself else ():
        if each is not None:
            check_sample(each)
    repeated = () if is_explained else (determinism.expected, determinism.actual)
    check_consistency(comparison, causes, parts, repeated, has_engines=True)
    codes = [trace.columns.candidates.outcome for trace in traces]
    outcomes = Outcomes(*map(_count, codes))
    sides = MemorySource(recorded[0]), MemorySource(recorded[1])
    comparison, exercised = judge_exercise(comparison, sides, outcomes, minimum)
    if comparison.verdict is Verdict.AGREE and tests_itself:
        ranks = expected_rank, actual_rank
        self_test = plant_in_verification(run, comparer, stepper, actual, remembered, ranks)
        same = describe_same(*(each.header.engine for each in recorded))
        comparison = msgspec.structs.replace(comparison, self_test=self_test, notes=(*comparison.notes, *same))
    attribution = None
    if causes and not lockstep and all(trace.rankings is not None for trace in traces):
        with phase("splitting the loss over the causes", 0):
            attribution = attribute_loss(
                traces[0], traces[1], divergences, causes, expected_rank, actual_rank, effort=effort
            )
        check_attribution(attribution, traces[0], traces[1])
    metrics = _metrics(*traces)
    check_numbers(outcomes, metrics, codes, [trace.rankings for trace in traces])
    limits = describe_lockstep(divergences, (expected.engine, actual.engine)) if stepper is not None else ()
    if hidden:
        limits = (f"not compared in lockstep, but as each engine ran: {' and '.join(hidden)} does not show its steps",)
    hits = describe_hits(traces[0].rankings.num_ranked) if traces[0].rankings is not None else ()
    rounding = (*describe_rounding(comparison), *name_way_out(comparer, comparison), *compilations.describe())
    notes = (*comparison.notes, *run.graph.choices, *hits, *describe_ranking(traces), *limits, *rounding)
    noted = msgspec.structs.replace(comparison, notes=notes)
    report = build_report(
        _note_proofs(noted, outcomes),
        traces[0].header,
        describe_environment(*traces),
        metrics,
        determinism,
        lockstep=lockstep,
        causes=causes,
        attribution=attribution,
        outcomes=outcomes,
        reasons_of_actual=actual.engine.reasons if isinstance(actual.engine, ExplainedEngine) else (),
        caches=actual.engine.caches if isinstance(actual.engine, ExplainedEngine) else None,
        exercise=exercised,
        minimum=minimum,
    )
    return Verification(report, recorded[0], recorded[1], stepper.actual if stepper is not None else None)


class RecordedComparison:
    """A report and its two recorded traces, expected and actual. Traces on disk stay there."""

    stepped: Trace | None = None

    def __init__(self, report: Report, sources: tuple[StepSource, StepSource], rebuilds: Rebuilds) -> None:
        self.report = report
        self.traces = tuple(source.trace for source in sources)
        self._sources = sources
        self._rebuilds = rebuilds

    @cached_property
    def expected(self) -> Trace:
        """The whole expected trace in memory, as it was compared; read at first access."""
        return self._rebuilds.apply(0, _read_whole(self._sources[0]))

    @cached_property
    def actual(self) -> Trace:
        """The whole actual trace in memory, as it was compared; read at first access."""
        return self._rebuilds.apply(1, _read_whole(self._sources[1]))

    def excerpt(self) -> Trace | None:
        """Return the expected trace with the candidate of the first divergence alone; None without it or its goals."""
        first, expected = self.report.first_cause, self._sources[0]
        if first is None or first.step < 0 or not 0 <= first.candidate < expected.num_candidates:
            return None
        row = np.array([first.candidate])
        block = self._rebuilds.apply(0, expected.load(expected.read_rows(row), row))
        return block if has_goals(block.header.level) else None


def _read_whole(source: StepSource) -> Trace:
    return source.trace if isinstance(source.trace, Trace) else read_trace(source.trace.path)


def compare_recorded(
    expected: str | Path | TraceFile | Trace,
    actual: str | Path | TraceFile | Trace,
    *,
    verifies_content: bool | None = None,
    score_error: str | float | None = None,
    modulo: Collection[str] | None = None,
    minimum: Minimum = MINIMUM,
    allows_dialects: bool = False,
    progress: Progress = no_progress,
) -> RecordedComparison:
    """Compare two recorded traces block by block; needs no engine, nor memory for the traces. See `Comparer`.

    minimum:         the exercise that AGREE requires of both sides
    allows_dialects: whether to compare traces of different dialects, whose differences are noted

    Compact traces that differ are compared goal by goal, if their clauses imply the recorded goals.
    """
    make = partial(
        Comparer,
        expected,
        actual,
        verifies_content=verifies_content,
        kept=KEPT,
        rebuilding=Rebuilder,
        explains=True,
        modulo=modulo,
        allows_dialects=allows_dialects,
        progress=progress,
    )
    comparer = make(score_error=score_error)
    tolerance = bound_recorded(comparer, comparer.compare(), score_error)
    if tolerance is not None:
        comparer = make(score_error=tolerance)
        comparer.compare()
    report = _judge_recorded(comparer, minimum)
    return RecordedComparison(report, comparer.sources, comparer.rebuilds)


def _judge_recorded(
    comparer: Comparer,
    minimum: Minimum,
    *,
    tests_itself: bool = True,
    effort: Effort = FULL,
) -> Report:
    """Return the report of two recorded traces that were compared."""
    score_error = comparer.score_error
    compared = _admit_unfollowed(comparer.comparison)
    repeating = comparer.benign.candidates(DUPLICATES)
    ranked = recognise_ranks(compared, comparer, score_error)
    unexplained = ranked.unexplained if ranked is not None else frozenset()
    comparison = _compare_recorded_rankings(compared, *comparer.sources, score_error, repeating, unexplained)
    nothing = Surroundings(None, None, None, (), frozenset(), 0.0)
    of_ranking = comparison.divergences[len(comparer.findings) :]
    findings = (*comparer.findings, *(judge_ranks(classify(each, nothing), ranked) for each in of_ranking))
    dialect = comparer.sources[0].header.limits.dialect
    divergences, causes = group_causes(*name_in_dialect(comparison.divergences, findings, dialect))
    divergences, causes = describe_conditions(causes, divergences, comparer, most=effort.explained)
    comparison = msgspec.structs.replace(comparison, divergences=divergences)
    check_consistency(comparison, causes, [comparer.comparison], has_engines=False)
    codes = [source.gather_column("outcome", np.arange(source.num_candidates)) for source in comparer.sources]
    outcomes = Outcomes(*map(_count, codes))
    comparison, exercised = judge_exercise(comparison, comparer.recorded, outcomes, minimum)
    if tests_itself:
        check_sample(comparer)
        comparison = withhold_agreement(comparison, comparer)
    if comparison.verdict is Verdict.AGREE and tests_itself:
        self_test = plant_in_recorded(comparer, partial(_compare_recorded_rankings, score_error=score_error))
        comparison = msgspec.structs.replace(comparison, self_test=self_test)
    sides = ranked.traces if ranked is not None else comparer.sources
    metrics = _metrics(*sides)
    check_numbers(outcomes, metrics, codes, [side.rankings for side in sides])
    attribution, notes = split_recorded_loss(ranked, divergences, causes, effort)
    further = (*notes, *describe_rounding(comparison), *name_way_out(comparer, comparison))
    comparison = msgspec.structs.replace(comparison, notes=(*comparison.notes, *further))
    return build_report(
        _note_proofs(comparison, outcomes),
        comparer.sources[0].header,
        describe_environment(*comparer.sources),
        metrics,
        Determinism(),
        causes=causes,
        attribution=attribution,
        outcomes=outcomes,
        ranking_rules=ranked.rules if ranked is not None else None,
        exercise=exercised,
        minimum=minimum,
    )


def _compare_recorded_rankings(
    comparison: Comparison,
    expected: StepSource,
    actual: StepSource,
    score_error: ScoreError,
    repeating: NDArray[np.int64] = NO_ROWS,
    unexplained: Collection[tuple[int, int]] = (),
) -> Comparison:
    """Compare rankings like `compare_rankings`, but read no candidates if all ranks are equal."""
    left, right = expected.rankings, actual.rankings
    if left is not None and right is not None:
        if not unexplained and all(np.array_equal(left[i], right[i]) for i in range(len(left))):
            return comparison
        if any("are listed" in note for note in comparison.notes):
            note = "ranks were not compared: not all divergences that may explain them are listed"
            return msgspec.structs.replace(comparison, notes=(*comparison.notes, note))
    shells = expected.shell(has_candidates=True), actual.shell()
    return compare_rankings(comparison, *shells, score_error=score_error, repeating=repeating, unexplained=unexplained)


def _admit_unfollowed(comparison: Comparison) -> Comparison:
    """Make near-ties without divergences inconclusive: the steps after a near-tie need an engine to be compared."""
    if not comparison.near_ties or comparison.verdict is not Verdict.AGREE:
        return comparison
    reason = (
        f"{len(comparison.near_ties)} candidates differ from a near-tie on, and recorded steps after one cannot be compared:"
        " compare the engines themselves"
    )
    return msgspec.structs.replace(comparison, verdict=Verdict.INCONCLUSIVE, reasons=(*comparison.reasons, reason))


def describe_environment(expected: Trace | StepSource, actual: Trace | StepSource) -> Environment:
    """Describe this machine and both engines."""
    return Environment(
        kgverify=__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        num_cpus=os.cpu_count() or 1,
        expected=expected.header.engine,
        actual=actual.header.engine,
    )


def _count(outcomes: NDArray[np.int8]) -> dict[str, int]:
    values, counts = np.unique(outcomes, return_counts=True)
    return {outcome_name(value): num for value, num in zip(values.tolist(), counts.tolist(), strict=True)}


def _note_proofs(comparison: Comparison, outcomes: Outcomes) -> Comparison:
    """Note a difference in the number of proofs, which readers look for first."""
    sides = outcomes.expected, outcomes.actual
    num = [sum(side.values()) for side in sides]
    proved = [side.get(Outcome.PROVED.name, 0) for side in sides]
    if proved[0] == proved[1]:
        return comparison
    note = f"{proved[0]:,} of {num[0]:,} candidates proved expected, {proved[1]:,} of {num[1]:,} actual"
    if not proved[1]:
        note = f"no candidate was proved by the actual side: {note}"
    return msgspec.structs.replace(comparison, notes=(*comparison.notes, note))


def _rank(run: Run, pipeline: Pipeline, candidates: Candidates) -> Rankings:
    return pipeline.rank_in_dialect(run, candidates)


def _run_pipeline(
    run: Run, pipeline: Pipeline, role: str, check_determinism: bool, phase: Phase, compilations: CompilationLog
) -> EngineRun:
    candidates = pipeline.draw_for(run)
    title = f"{role}: {pipeline.engine.info.name}"
    with phase(title, len(candidates.query)) as progress, compilations.of(title, "the first run"):
        columns = pipeline.engine.prove(candidates, progress)
    again = None
    if check_determinism:
        with phase(f"{title}, again", len(candidates.query)) as progress, compilations.of(title, "the second run"):
            again = pipeline.engine.prove(candidates, progress)
    # Only columns that are consistent can be ranked.
    trace = build_trace(run, pipeline.engine, columns, None)
    engine = trace.header.engine
    if engine.name not in OWN_ENGINES and find_float_type(columns.resolvents.score) == "float32":
        # A float32 number has no more bits, whatever array it comes in.
        header = msgspec.structs.replace(trace.header, engine=name_float32(engine))
        trace = replace(trace, header=header)
    trace = replace(trace, rankings=pipeline.rank_finite(run, columns.candidates))
    return EngineRun(role, pipeline.engine, trace, again)


def _metrics(expected: Trace | StepSource, actual: Trace | StepSource) -> Metrics:
    """Compute the expected metrics by the reference, and the actual ones by `kgverify.ranking`.

    InternalError if the two disagree on the same ranks.
    """
    from kgverify.engines.reference.ranking import compute_metrics as compute_by_reference

    computed = []
    for rankings, compute, check in (
        (expected.rankings, compute_by_reference, compute_metrics),
        (actual.rankings, compute_metrics, compute_by_reference),
    ):
        ranks = rankings if rankings is not None and len(rankings.query) else None
        computed.append({} if ranks is None else compute(ranks))
        if ranks is not None and check(ranks) != computed[-1]:
            raise InternalError("the reference computes other metrics from the same ranks")
    return Metrics(*computed)
