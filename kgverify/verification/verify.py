"""The verification of a pipeline against another on the same run, and the comparison of two recorded traces."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.classify import Surroundings, classify, group_causes
from kgverify.comparison.compare import KEPT, Comparer
from kgverify.comparison.exercise.exercise import MINIMUM, Minimum
from kgverify.comparison.goals import Rebuilds
from kgverify.comparison.inference.dialects import name_in_dialect
from kgverify.comparison.modulo.policy import DUPLICATES
from kgverify.comparison.rankings import NO_ROWS, RankCandidates, compare_rankings
from kgverify.comparison.recorded.evidence import ROLES, withhold_agreement
from kgverify.comparison.result import Attribution, Cause, Comparison, Verdict
from kgverify.comparison.source import MemorySource, StepSource, has_steps
from kgverify.conditions.declared import read_declared
from kgverify.conditions.describe import describe_conditions
from kgverify.conditions.features import Feature
from kgverify.engines.protocol import Engine, ExplainedEngine
from kgverify.progress import Phase, Progress, no_progress, silent_phase
from kgverify.ranking.metric import describe_hits
from kgverify.report.report import Report
from kgverify.runs.run import Pipeline, Run, build_trace, describe_ranking, rank_alike
from kgverify.trace.model.levels import has_goals
from kgverify.trace.model.score_error import OWN_ENGINES, ScoreError, find_float_type, name_float32
from kgverify.trace.model.trace import Trace
from kgverify.trace.read.trace_file import TraceFile, read_trace
from kgverify.verification.adding_up import check_attribution
from kgverify.verification.attribute import attribute_loss
from kgverify.verification.compilation_log import CompilationLog
from kgverify.verification.effort import FULL, Effort
from kgverify.verification.evidence import describe_same
from kgverify.verification.judgement import Explained, judge
from kgverify.verification.lockstep import compare_in_lockstep, describe_lockstep, follow_near_ties, lockstep_comparer
from kgverify.verification.rebuild import Rebuilder
from kgverify.verification.recorded_ranks import judge_ranks, recognise_ranks, split_recorded_loss
from kgverify.verification.repetition import Repetition, judge_repetition, prove_again
from kgverify.verification.replay import Explainer, Replayed, Views
from kgverify.verification.rerun import rerun
from kgverify.verification.rounding import EngineRun, bound_recorded, settle_score_error
from kgverify.verification.score_sources import SCORES_BEFORE


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
    effort: Effort = FULL,
    phase: Phase = silent_phase,
) -> Verification:
    """Run both pipelines and compare their steps. score_error: of the actual side, accepted instead of the judge's bound.

    modulo: the kinds of differences that are benign; None: names, if an engine numbers variables its own way.

    By default each engine follows its own choices. With `lockstep`, the actual engine takes each step from the expected
    goal, which separates independent faults from consequences; the metrics are still those of the free run.

    minimum: the exercise that AGREE requires of both sides
    """
    compilations = CompilationLog()
    pipelines = expected, actual
    ran = _run_both(run, pipelines, check_determinism, phase, compilations)
    with phase("measuring the rounding of scores", 0):
        accepted = settle_score_error(ran.sides, score_error)
    repetition = judge_repetition(run, ran.sides, accepted, modulo)
    hidden = _find_hidden(pipelines) if lockstep else ()
    task = _Task(run, pipelines, accepted, modulo, lockstep and not hidden, effort, phase)
    compared = _compare(task, rank_alike(run, pipelines, ran.traces))
    comparison, causes = _explain(task, compared, ran.declared, is_repeating=not repetition.reasons)
    comparison = _judge_repeated(comparison, causes, repetition)
    attribution = _split_loss(task, compared, comparison, causes)
    report = judge(
        Explained(comparison, causes, compared.parts, _sources(ran.traces), _sources(compared.traces), compared.traces),
        minimum,
        withhold=partial(_note_same, traces=ran.traces),
        notes=_describe(task, compared, comparison, hidden),
        later_notes=compilations.describe(),
        determinism=repetition.determinism,
        lockstep=task.lockstep,
        attribution=attribution,
        reasons_of_actual=actual.engine.reasons if isinstance(actual.engine, ExplainedEngine) else (),
        caches=actual.engine.caches if isinstance(actual.engine, ExplainedEngine) else None,
    )
    stepped = compared.stepper.actual if compared.stepper is not None else None
    return Verification(report, *ran.traces, stepped)


class _Ran(NamedTuple):
    """Both sides after their runs, and the features that the actual engine declares for its columns."""

    sides: tuple[EngineRun, EngineRun]
    declared: tuple[Feature, ...]

    @property
    def traces(self) -> tuple[Trace, Trace]:
        return self.sides[0].trace, self.sides[1].trace


class _Task(NamedTuple):
    """Two pipelines to compare on a run, and what counts as equal."""

    run: Run
    pipelines: tuple[Pipeline, Pipeline]
    score_error: ScoreError
    modulo: Collection[str] | None
    lockstep: bool
    effort: Effort
    phase: Phase

    @property
    def engines(self) -> tuple[Engine, Engine]:
        return self.pipelines[0].engine, self.pipelines[1].engine

    @property
    def ranks(self) -> tuple[RankCandidates, RankCandidates]:
        expected, actual = (partial(each.rank_in_dialect, self.run) for each in self.pipelines)
        return expected, actual


class _Compared(NamedTuple):
    """Both traces, ranked alike, and what their comparison found.

    stepper: compared the steps from the expected goals; None if this was not done
    """

    traces: Sequence[Trace]
    comparer: Comparer
    stepper: Comparer | None
    comparison: Comparison
    views: Views

    @property
    def parts(self) -> tuple[Comparer, ...]:
        return (self.comparer,) if self.stepper is None else (self.comparer, self.stepper)


def _run_both(
    run: Run, pipelines: tuple[Pipeline, Pipeline], repeats: bool, phase: Phase, compilations: CompilationLog
) -> _Ran:
    """Run both engines, and prove a sample of their candidates again."""
    sides = [_run_pipeline(run, *each, phase, compilations) for each in zip(pipelines, ROLES, strict=True)]
    # Features are those of the columns that the engine returned last.
    declared = read_declared(pipelines[1].engine, sides[1].trace.columns)
    for i, side in enumerate(sides if repeats else ()):
        title = _title(side.engine, side.role)
        with phase(f"{title}, again", 0) as progress, compilations.of(title, "the second run"):
            sides[i] = prove_again(side, pipelines[i].draw_for(run), progress)
    return _Ran((sides[0], sides[1]), declared)


def _sources(traces: Sequence[Trace]) -> tuple[StepSource, StepSource]:
    return MemorySource(traces[0]), MemorySource(traces[1])


def _title(engine: Engine, role: str) -> str:
    return f"{role}: {engine.info.name}"


def _run_pipeline(run: Run, pipeline: Pipeline, role: str, phase: Phase, compilations: CompilationLog) -> EngineRun:
    candidates = pipeline.draw_for(run)
    title = _title(pipeline.engine, role)
    with phase(title, len(candidates.query)) as progress, compilations.of(title, "the first run"):
        columns = pipeline.engine.prove(candidates, progress)
    # Only columns that are consistent can be ranked.
    trace = build_trace(run, pipeline.engine, columns, None)
    engine = trace.header.engine
    if engine.name not in OWN_ENGINES and find_float_type(columns.resolvents.score) == "float32":
        # A float32 number has no more bits, whatever array it comes in.
        header = msgspec.structs.replace(trace.header, engine=name_float32(engine))
        trace = replace(trace, header=header)
    trace = replace(trace, rankings=pipeline.rank_finite(run, columns.candidates))
    return EngineRun(role, pipeline.engine, trace)


def _compare(task: _Task, traces: tuple[Trace, ...]) -> _Compared:
    """Compare the traces: every step from the expected goals, or the free runs and what follows near-ties in them."""
    comparer = Comparer(*traces, score_error=task.score_error, modulo=task.modulo)
    actual = task.pipelines[1]
    if not task.lockstep:
        found = follow_near_ties(comparer, comparer.compare(), task.run, actual, task.phase)
        return _Compared(traces, comparer, None, *found)
    stepper = lockstep_comparer(task.run, traces[0], actual, task.phase, task.score_error, task.modulo)
    return _Compared(traces, comparer, stepper, *compare_in_lockstep(stepper, comparer))


def _explain(
    task: _Task, compared: _Compared, declared: tuple[Feature, ...], *, is_repeating: bool
) -> tuple[Comparison, tuple[Cause, ...]]:
    """Replay the divergent steps, compare the ranks, group the divergences, and find the conditions of their causes."""
    traces, comparer, comparison = compared.traces, compared.comparer, compared.comparison
    explainer = Explainer(
        traces[0],
        comparer,
        compared.views,
        task.engines,
        lockstep=task.lockstep,
        is_repeating=is_repeating,
        effort=task.effort,
    )
    with task.phase("replaying divergent steps", 0):
        replayed = explainer.replay(comparison.divergences)
    comparison = msgspec.structs.replace(comparison, divergences=tuple(each.divergence for each in replayed))
    comparison = compare_rankings(comparison, traces[0], traces[1], task.ranks)
    of_ranking = comparison.divergences[len(replayed) :]
    divergences, causes = explainer.group([*replayed, *(Replayed(each, None) for each in of_ranking)])
    divergences, causes = describe_conditions(
        causes,
        divergences,
        comparer,
        compared.views,
        [each.outputs for each in replayed],
        lockstep=task.lockstep,
        own=declared,
        engines=task.engines,
        run_again=partial(rerun, task.run, *task.pipelines, traces[0], comparer),
        most=task.effort.explained,
    )
    return msgspec.structs.replace(comparison, divergences=divergences), causes


def _judge_repeated(comparison: Comparison, causes: Sequence[Cause], repetition: Repetition) -> Comparison:
    """Make the verdict INCONCLUSIVE if an engine does not repeat itself, unless that is the fault found."""
    unrepeated = repetition.reasons
    is_right = repetition.determinism.expected is not False
    is_explained = is_right and any(each.situation == SCORES_BEFORE for each in causes)
    # An engine that hands out scores of the call before cannot repeat itself: that is its fault.
    fatal = () if is_explained else unrepeated
    if comparison.verdict is Verdict.AGREE:
        fatal = (*fatal, *repetition.by_batch)
    noted = [each for each in (*unrepeated, *repetition.by_batch) if each not in fatal]
    comparison = msgspec.structs.replace(comparison, notes=(*comparison.notes, *noted))
    if not fatal:
        return comparison
    return msgspec.structs.replace(comparison, verdict=Verdict.INCONCLUSIVE, reasons=(*comparison.reasons, *fatal))


def _split_loss(
    task: _Task, compared: _Compared, comparison: Comparison, causes: tuple[Cause, ...]
) -> Attribution | None:
    """Split the loss of the metric over the causes; None in lockstep, and without causes or ranks."""
    expected, actual = compared.traces
    if task.lockstep or not causes or expected.rankings is None or actual.rankings is None:
        return None
    with task.phase("splitting the loss over the causes", 0):
        found = attribute_loss(expected, actual, comparison.divergences, causes, *task.ranks, effort=task.effort)
    check_attribution(found, expected, actual)
    return found


def _note_same(comparison: Comparison, traces: tuple[Trace, Trace]) -> Comparison:
    """Note that both sides are of one engine, if they agree."""
    if comparison.verdict is not Verdict.AGREE:
        return comparison
    same = describe_same(*(each.header.engine for each in traces))
    return msgspec.structs.replace(comparison, notes=(*comparison.notes, *same))


def _describe(task: _Task, compared: _Compared, comparison: Comparison, hidden: Sequence[str]) -> list[str]:
    """Return notes on the graph, the ranks, and what lockstep leaves open."""
    rankings = compared.traces[0].rankings
    limits = () if compared.stepper is None else describe_lockstep(comparison.divergences, task.engines)
    if hidden:
        limits = (f"not compared in lockstep, but as each engine ran: {' and '.join(hidden)} does not show its steps",)
    hits = describe_hits(rankings.num_ranked) if rankings is not None else ()
    return [*task.run.graph.choices, *hits, *describe_ranking(compared.traces), *limits]


def _find_hidden(pipelines: Sequence[Pipeline]) -> tuple[str, ...]:
    """Return the names of the engines that do not show their steps."""
    infos = [each.engine.info for each in pipelines]
    return tuple(dict.fromkeys(info.name for info in infos if not has_steps(info)))


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
    return RecordedComparison(judge_recorded(comparer, minimum), comparer.sources, comparer.rebuilds)


def judge_recorded(comparer: Comparer, minimum: Minimum, *, effort: Effort = FULL) -> Report:
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
    sides = ranked.traces if ranked is not None else comparer.sources
    attribution, notes = split_recorded_loss(ranked, divergences, causes, effort)
    return judge(
        Explained(comparison, causes, (comparer,), comparer.recorded, comparer.sources, sides),
        minimum,
        withhold=partial(withhold_agreement, comparer=comparer),
        notes=notes,
        attribution=attribution,
        ranking_rules=ranked.rules if ranked is not None else None,
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
