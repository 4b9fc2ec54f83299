"""The verification of a pipeline against another on the same run."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from kgverify.comparison.comparable import MemorySource, StepSource, has_steps
from kgverify.comparison.compare import Options
from kgverify.comparison.equality import DEFAULT_EQUALITY, Equality
from kgverify.comparison.rankings import compare_rankings
from kgverify.comparison.result import ROLES, Attribution, Cause, Comparison, Verdict
from kgverify.engines.protocol import DescribedEngine, Engine, ExplainedEngine
from kgverify.progress import Phase, silent_phase
from kgverify.ranking.rank import describe_hits
from kgverify.report.report import Report
from kgverify.runs.run import Pipeline, Run, build_trace, describe_ranking, rank_alike
from kgverify.trace.model.score_tolerance import OWN_ENGINES, find_float_type, name_float32
from kgverify.trace.model.trace import Trace
from kgverify.verification.effort import FULL, Effort
from kgverify.verification.judgement import Explained, describe_same, judge
from kgverify.verification.lockstep import Compared, Task, compare, describe_lockstep
from kgverify.verification.repetition import Repetition, judge_repetition, prove_again
from kgverify.verification.rounding import CompilationLog, EngineRun, measure_tolerance
from kgverify.verification.score_sources import SCORES_BEFORE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kgverify.conditions.features import Feature


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
    equality: Equality = DEFAULT_EQUALITY,
    effort: Effort = FULL,
    phase: Phase = silent_phase,
) -> Verification:
    """Run both pipelines and compare their steps.

    By default each engine follows its own choices. In lockstep, the actual engine takes each step from the expected goal,
    which separates independent faults from consequences; the metrics are still those of the free run.
    """
    compilations = CompilationLog()
    pipelines = expected, actual
    sides, declared = _run_both(run, pipelines, equality.determinism, phase, compilations)
    traces = sides[0].trace, sides[1].trace
    with phase("measuring the rounding of scores", 0):
        tolerance = measure_tolerance(sides, equality.accepted_error)
    repetition = judge_repetition(run, sides, Options(equality=equality, tolerance=tolerance))
    hidden = _find_hidden(pipelines) if equality.lockstep else ()
    equality = replace(equality, lockstep=equality.lockstep and not hidden)
    task = Task(run, pipelines, equality, tolerance, effort, phase)
    compared = compare(task, rank_alike(run, pipelines, traces))
    comparison, causes, attribution = _explain(task, compared, declared, is_repeating=not repetition.reasons)
    comparison = _judge_repeated(comparison, causes, repetition)
    report = judge(
        Explained(comparison, causes, compared.parts, _sources(traces), _sources(compared.traces), compared.traces),
        equality.required,
        withhold=partial(_note_same, traces=traces),
        notes=_describe(task, compared, comparison, hidden),
        later_notes=compilations.describe(),
        determinism=repetition.determinism,
        lockstep=equality.lockstep,
        attribution=attribution,
        reasons_of_actual=actual.engine.reasons if isinstance(actual.engine, ExplainedEngine) else (),
        caches=actual.engine.caches if isinstance(actual.engine, ExplainedEngine) else None,
    )
    stepped = compared.stepper.actual if compared.stepper is not None else None
    return Verification(report, *traces, stepped)


def _run_both(
    run: Run, pipelines: tuple[Pipeline, Pipeline], repeats: bool, phase: Phase, compilations: CompilationLog
) -> "tuple[tuple[EngineRun, EngineRun], tuple[Feature, ...]]":
    """Run both engines, and prove a sample of their candidates again. Also return the features that the actual one declares."""
    sides = [_run_pipeline(run, *each, phase, compilations) for each in zip(pipelines, ROLES, strict=True)]
    declared: tuple[Feature, ...] = ()
    if isinstance(pipelines[1].engine, DescribedEngine):
        from kgverify.conditions.features import read_declared

        # Features are those of the columns that the engine returned last.
        declared = read_declared(pipelines[1].engine, sides[1].trace.columns)
    for i, side in enumerate(sides if repeats else ()):
        title = _title(side.engine, side.role)
        with phase(f"{title}, again", 0) as progress, compilations.of(title, "the second run"):
            sides[i] = prove_again(side, pipelines[i].draw_for(run), progress)
    return (sides[0], sides[1]), declared


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


def _explain(
    task: Task, compared: Compared, declared: "tuple[Feature, ...]", *, is_repeating: bool
) -> tuple[Comparison, tuple[Cause, ...], Attribution | None]:
    """Compare the ranks, and explain what differs: nothing that explains is imported before something does."""
    if not compared.comparison.divergences:
        comparison = compare_rankings(compared.comparison, compared.traces[0], compared.traces[1], task.ranks)
        if not comparison.divergences:
            return comparison, (), None
    from kgverify.verification.explain import explain

    return explain(task, compared, declared, is_repeating=is_repeating)


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


def _note_same(comparison: Comparison, traces: tuple[Trace, Trace]) -> Comparison:
    """Note that both sides are of one engine, if they agree."""
    if comparison.verdict is not Verdict.AGREE:
        return comparison
    same = describe_same(*(each.header.engine for each in traces))
    return msgspec.structs.replace(comparison, notes=(*comparison.notes, *same))


def _describe(task: Task, compared: Compared, comparison: Comparison, hidden: Sequence[str]) -> list[str]:
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
