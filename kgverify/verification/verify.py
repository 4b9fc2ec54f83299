"""The verification of a pipeline against another on the same run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

import msgspec
import numpy as np

from kgverify.codes import Code, Coded
from kgverify.comparison.align import align_candidates
from kgverify.comparison.comparable import MemorySource, StepSource, has_steps, searches
from kgverify.comparison.compare import Comparer, Options
from kgverify.comparison.equality import DEFAULT_EQUALITY, Equality
from kgverify.comparison.rankings import compare_rankings
from kgverify.comparison.result import ROLES, SCORES_BEFORE, Attribution, Cause, Comparison, Verdict
from kgverify.engines.beams import takes_steps
from kgverify.engines.protocol import DescribedEngine, Engine, ExplainedEngine, NumberedEngine, candidate_set
from kgverify.errors import use_words
from kgverify.program.limits import OURS
from kgverify.program.outcomes import Outcome
from kgverify.progress import Phase, Progress, no_progress, silent_phase
from kgverify.ranking.rank import describe_hits
from kgverify.report.content import Determinism
from kgverify.report.report import Report
from kgverify.runs.run import Pipeline, Run, build_trace, describe_ranking, rank_alike, reference_pipeline
from kgverify.trace.model.columns import CandidateSet, are_equal
from kgverify.trace.model.score_tolerance import OWN_ENGINES, find_float_type, name_float32
from kgverify.trace.model.trace import Trace
from kgverify.trace.write.spool import Spool
from kgverify.verification.judgement import FULL, Effort, Explained, describe_same, judge, require_shown
from kgverify.verification.lockstep import Compared, Task, compare, describe_lockstep, step_from_goals
from kgverify.verification.rounding import CompilationLog, EngineRun, measure_tolerance

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kgverify.conditions.features import Feature


# The repeated run of an engine: it proves a sample of its candidates again, and the results must agree up to rounding

TO_THE_BIT: Final = "to the bit"
IN_THE_SAME_BATCH: Final = "in the same batch"
SHARE: Final = 16
"""One in this number of candidates is proved again."""
MIN_SAMPLE: Final = 16
BLOCK: Final = 1 << 13
"""The maximum number of candidates whose steps stay in memory. A larger run is proved in blocks of this size."""
MAX_SAMPLE: Final = 64
"""The most candidates of a sample, which is the same in every run of the same candidates."""


class Repetition(NamedTuple):
    """The repetition of both engines.

    reasons: why the verdict is INCONCLUSIVE, if an engine is not deterministic
    by_batch: the reasons why AGREE is INCONCLUSIVE, if an engine is deterministic but another batch changes its results
    """

    determinism: Determinism
    reasons: tuple[Coded, ...]
    by_batch: tuple[Coded, ...]


def prove_again(side: EngineRun, asked: CandidateSet, progress: Progress) -> EngineRun:
    """Prove a sample of candidates again, spread over the run; prove all if the engine returned a different number of them."""
    num = len(side.trace.columns.candidates.query)
    if num != len(asked.query):
        return side._replace(rows=np.arange(num), again=side.engine.prove(asked, progress))
    rows = np.unique(np.linspace(0, num - 1, min(num, MAX_SAMPLE, max(MIN_SAMPLE, num // SHARE))).astype(np.int64))
    return side._replace(rows=rows, again=side.engine.prove(asked.take(rows), progress))


def judge_repetition(run: Run, sides: tuple[EngineRun, EngineRun], options: Options) -> Repetition:
    """Return whether each engine repeats itself, and the consequences for the verdict if an engine does not.

    Lists, choices and outcomes must be equal, and scores must agree within their bound. A choice between two scores closer
    than the bound is a near-tie, as in a comparison of two engines.
    """
    found = [_compare_runs(run, side, options) for side in sides]
    nums = [None if side.again is None else len(side.rows) for side in sides]
    (expected, expected_within, _), (actual, actual_within, _) = found
    return Repetition(
        Determinism(expected, actual, expected_within, actual_within, *nums),
        tuple(Code.NOT_DETERMINISTIC.mark(reason) for is_same, _, reason in found if reason and not is_same),
        tuple(Code.DEPENDS_ON_BATCH.mark(reason) for is_same, _, reason in found if reason and is_same),
    )


def _compare_runs(run: Run, side: EngineRun, options: Options) -> tuple[bool | None, str, str]:
    """Return whether a side repeats itself, how exactly, and why the verdict may be INCONCLUSIVE."""
    if side.again is None:
        return None, "", ""
    first = side.trace.reader.gather_candidates(side.rows)
    if are_equal(first[:3], side.again[:3], equal_nan=True):
        return True, TO_THE_BIT, ""
    traces = [build_trace(run, side.engine, each, None) for each in (first, side.again)]
    comparer = Comparer(traces[0], traces[1], options)
    found = comparer.compare()
    if not found.divergences:
        largest = found.rounding.largest if found.rounding is not None else 0.0
        words = f"within {comparer.describe_difference(largest)}" if largest else TO_THE_BIT
        return True, words + f", with {len(found.near_ties):,} choices at near-ties" * bool(found.near_ties), ""
    whole, rows, differing = candidate_set(side.trace.columns), side.rows, found.divergences
    is_of_batch = len(rows) < len(whole.query)
    # Repeat the batches of the first run with all candidates; twice, since an engine may alternate.
    for _ in range(2 * is_of_batch):
        again = prove_candidates(run, side.engine, whole)
        in_same_batch = Comparer(replace(side.trace, header=again.header), again, options).compare().divergences
        if in_same_batch:
            is_of_batch, differing, rows = False, in_same_batch, np.arange(len(whole.query))
            break
    num, earliest = len(differing), differing[0]
    where = f"first in {earliest.field} of candidate {rows[earliest.candidate]}, {earliest.atom}"
    where += f", from step {earliest.step} on" if earliest.step >= 0 else ""
    if is_of_batch:
        reason = (
            f"the {side.role} engine gives {num:,} of {len(rows):,} candidates other results in another batch, {where}"
        )
        return True, IN_THE_SAME_BATCH, reason
    reason = f"two runs of the same candidates differ in {num:,} of {len(rows):,}, {where}"
    return False, "", f"the {side.role} engine is not deterministic: {reason}"


# The verification


Follow = Callable[[Trace, Phase], tuple[Trace, bool]]
"""A function that makes the expected trace from the actual one, and says whether both are of equal runs of all candidates."""


@dataclass(frozen=True, eq=False)
class Verification:
    """A report and its two traces.

    stepped: in lockstep, the actual engine's steps from the expected goals, each as a candidate with one step, in the
             order of the expected steps
    """

    report: Report
    expected: Trace
    actual: Trace
    stepped: Trace | None = None

    def excerpt(self) -> Trace:
        """Return the expected trace, which is already in memory."""
        return self.expected


def verify(
    run: Run,
    expected: Pipeline,
    actual: Pipeline,
    *,
    equality: Equality = DEFAULT_EQUALITY,
    effort: Effort = FULL,
    phase: Phase = silent_phase,
    follow: Follow | None = None,
) -> Verification:
    """Run both pipelines and compare their steps.

    By default each engine follows its own choices. In lockstep, the actual engine takes each step from the expected goal,
    which separates independent faults from consequences; the metrics are still those of the free run.

    follow: a function that makes the expected trace from the actual one; without it, the expected engine proves everything
    """
    compilations = CompilationLog()
    pipelines = expected, actual
    sides, declared = _run_both(run, pipelines, equality.determinism, phase, compilations, follow)
    traces = sides[0].trace, sides[1].trace
    hidden = _find_hidden(run, pipelines) if equality.lockstep else ()
    equality = replace(equality, lockstep=equality.lockstep and not hidden)
    if equality.lockstep:
        sides = sides[0], sides[1]._replace(stepped=step_from_goals(traces[0], actual, phase))
    with phase("measuring the rounding of scores", 0):
        tolerance = measure_tolerance(sides, equality.accepted_error)
    repetition = judge_repetition(run, sides, Options(equality=equality, tolerance=tolerance))
    task = Task(run, pipelines, equality, tolerance, effort, phase)
    compared = compare(task, rank_alike(run, pipelines, traces), sides[1].stepped)
    comparison, causes, attribution = _explain(task, compared, declared, is_repeating=not repetition.reasons)
    comparison = _judge_repeated(comparison, causes, repetition)
    report = judge(
        Explained(comparison, causes, compared.parts, _sources(traces), _sources(compared.traces), compared.traces),
        require_shown(equality, traces[0].header.engine),
        withhold=partial(_note_same, traces=traces),
        notes=_describe(task, compared, comparison, hidden),
        later_notes=compilations.describe(),
        determinism=repetition.determinism,
        lockstep=equality.lockstep,
        attribution=attribution,
        reasons_of_actual=actual.engine.reasons if isinstance(actual.engine, ExplainedEngine) else (),
    )
    stepper = compared.stepper
    stepped = stepper.pair_of(stepper.paired_rows).actual if stepper is not None else None
    return Verification(report, *traces, stepped)


def _run_both(
    run: Run,
    pipelines: tuple[Pipeline, Pipeline],
    repeats: bool,
    phase: Phase,
    compilations: CompilationLog,
    follow: Follow | None,
) -> "tuple[tuple[EngineRun, EngineRun], tuple[Feature, ...]]":
    """Run both engines, and prove a sample of their candidates again; also return the features declared by the actual one."""
    sides = [
        _run_pipeline(run, *each, phase, compilations)
        for each in [*zip(pipelines, ROLES, strict=True)][follow is not None :]
    ]
    if follow is not None:
        expected, is_repetition = follow(sides[0].trace, phase)
        repeats = repeats and not is_repetition
        sides.insert(0, EngineRun(ROLES[0], pipelines[0].engine, expected))
    declared: tuple[Feature, ...] = ()
    engine = pipelines[1].engine
    if isinstance(engine, (DescribedEngine, NumberedEngine)):
        from kgverify.conditions.features import read_declared, read_numbers

        # Features describe the columns that the engine returned last.
        declared = read_declared(engine, sides[1].trace.columns) if isinstance(engine, DescribedEngine) else ()
        declared += read_numbers(engine, run.graph.program.symbols) if isinstance(engine, NumberedEngine) else ()
    # An expected trace that follows the actual one is not made by the expected engine alone.
    for i in range(follow is not None, 2) if repeats else ():
        side = sides[i]
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
        trace = prove_candidates(run, pipeline.engine, candidates, progress)
    columns, engine = trace.columns, trace.header.engine
    if engine.name not in OWN_ENGINES and find_float_type(columns.resolvents.score) == "float32":
        # The scores are float32 numbers, whatever the type of the array.
        header = msgspec.structs.replace(trace.header, engine=name_float32(engine))
        trace = replace(trace, header=header)
    trace = replace(trace, rankings=pipeline.rank_finite(run, columns.candidates))
    return EngineRun(role, pipeline.engine, trace)


def prove_candidates(run: Run, engine: Engine, candidates: CandidateSet, progress: Progress = no_progress) -> Trace:
    """Prove candidates; the steps of a large run are in temporary files. UserError for inconsistent columns."""
    # Features describe the columns that the engine returned last.
    if len(candidates.query) <= BLOCK or isinstance(engine, DescribedEngine):
        return build_trace(run, engine, engine.prove(candidates, progress), None)
    from kgverify.verification.record import prove_parts  # imports h5py

    with Spool(f"engine {engine.info.name}") as spool:
        for read in prove_parts(engine, candidates, progress, size=BLOCK):
            part = build_trace(run, engine, read()[0], None)
            spool.append(part.columns, part.digests)
        columns, digests = spool.read()
    return replace(part, columns=columns, digests=digests)


def _explain(
    task: Task, compared: Compared, declared: "tuple[Feature, ...]", *, is_repeating: bool
) -> tuple[Comparison, tuple[Cause, ...], Attribution | None]:
    """Compare the ranks, and explain the differences; import the explaining modules only if there are any."""
    if not compared.comparison.divergences:
        comparison = compare_rankings(compared.comparison, compared.traces[0], compared.traces[1], task.ranks)
        if not comparison.divergences:
            return comparison, (), None
    from kgverify.verification.explain import explain

    return explain(task, compared, declared, is_repeating=is_repeating)


def _judge_repeated(comparison: Comparison, causes: Sequence[Cause], repetition: Repetition) -> Comparison:
    """Make the verdict INCONCLUSIVE if an engine does not repeat itself, unless this is the fault that was found."""
    unrepeated = repetition.reasons
    is_right = repetition.determinism.expected is not False
    is_explained = is_right and any(each.situation == SCORES_BEFORE for each in causes)
    # An engine that returns scores of an earlier call cannot repeat itself: that is the fault.
    fatal = () if is_explained else unrepeated
    if comparison.verdict is Verdict.AGREE:
        fatal = (*fatal, *repetition.by_batch)
    noted = [each for each in (*unrepeated, *repetition.by_batch) if each not in fatal]
    comparison = msgspec.structs.replace(comparison, notes=(*comparison.notes, *noted))
    if not fatal:
        return comparison
    return msgspec.structs.replace(comparison, verdict=Verdict.INCONCLUSIVE, reasons=(*comparison.reasons, *fatal))


def _note_same(comparison: Comparison, traces: tuple[Trace, Trace]) -> Comparison:
    """Add a note to AGREE if both sides ran the same engine."""
    if comparison.verdict is not Verdict.AGREE:
        return comparison
    same = describe_same(*(each.header.engine for each in traces))
    return msgspec.structs.replace(comparison, notes=(*comparison.notes, *same))


def _describe(task: Task, compared: Compared, comparison: Comparison, hidden: Sequence[str]) -> list[str]:
    """Return notes on the graph, the ranks, and the limits of lockstep."""
    rankings = compared.traces[0].rankings
    limits = () if compared.stepper is None else describe_lockstep(comparison.divergences, task.engines)
    if hidden:
        limits = (f"not compared in lockstep, but as each engine ran: {' and '.join(hidden)} does not show its steps",)
    hits = describe_hits(rankings.num_ranked) if rankings is not None else ()
    path = _describe_path(task.run, compared.traces)
    return [*task.run.graph.choices, *hits, *describe_ranking(compared.traces), *limits, *path]


def _describe_path(run: Run, traces: Sequence[Trace]) -> list[str]:
    """Return a note on the proofs of a searching reference that the path of the policy misses; the lost proofs come first."""
    if not searches(traces[0].header.engine):
        return []
    expected, actual = (trace.columns.candidates for trace in traces)
    proved = np.flatnonzero(expected.outcome == Outcome.PROVED)
    is_kept = np.zeros(len(expected.query), np.bool_)
    pairs = align_candidates(CandidateSet(*expected[:3]), CandidateSet(*actual[:3]))
    is_kept[pairs.expected] = actual.outcome[pairs.actual] == Outcome.PROVED
    rows = proved[np.argsort(is_kept[proved], kind="stable")][:MAX_SAMPLE]
    on_path = reference_pipeline(run).engine.prove(CandidateSet(*expected[:3]).take(rows)).candidates.outcome
    is_missed = on_path != Outcome.PROVED
    notes = []
    for is_of_both in (True, False):
        among = is_kept[rows] == is_of_both
        num, missed = int(among.sum()), int((is_missed & among).sum())
        if missed and is_of_both:
            notes.append(
                f"counted apart, no divergence: the path of the policy misses {missed:,} of {num:,} proofs of both"
            )
        elif missed:
            words = f"the path of the policy misses {missed:,} of {num:,} lost proofs, too"
            notes.append(use_words(f"{words}: if the engine follows this path, name --reference reference"))
    return notes


def _find_hidden(run: Run, pipelines: Sequence[Pipeline]) -> tuple[str, ...]:
    """Return the names of the engines that do not show their steps, or take no step from a given goal."""
    searches = run.limits.dialect.search != OURS.search
    engines = [each.engine for each in pipelines]
    shown = [has_steps(each.info) and takes_steps(each, has_paths=searches) for each in engines]
    return tuple(dict.fromkeys(each.info.name for each, is_shown in zip(engines, shown, strict=True) if not is_shown))
