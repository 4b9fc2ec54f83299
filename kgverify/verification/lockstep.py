"""The comparison of steps from the same goals: in lockstep, and after near-ties."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.comparable import lockstep_columns
from kgverify.comparison.compare import Comparer, Options
from kgverify.comparison.equality import Equality
from kgverify.comparison.locate import OF_ACTUAL
from kgverify.comparison.modulo import BenignCount
from kgverify.comparison.rankings import RankCandidates
from kgverify.comparison.result import Comparison, Divergence, Verdict, highest_level
from kgverify.comparison.step_view import Views
from kgverify.engines.beams import find_owners, take_again, takes_steps
from kgverify.engines.protocol import Engine, ProbedEngine
from kgverify.errors import UserError, count_of
from kgverify.program.outcomes import Stage
from kgverify.progress import Phase
from kgverify.runs.run import Pipeline, Run, build_trace
from kgverify.trace.model.columns import Columns, select_candidates, starts_of
from kgverify.trace.model.paths import has_paths
from kgverify.trace.model.score_tolerance import ScoreTolerance
from kgverify.trace.model.trace import Trace
from kgverify.verification.judgement import Effort


def step_from_goals(expected: Trace, actual: Pipeline, phase: Phase) -> Columns:
    """Take one step with the actual engine from each goal of the expected trace; in a search, one level from each beam."""
    with phase("one step from each expected goal", 0):
        return take_again(actual.engine, expected.columns)


def compare_steps(
    run: Run, actual: Pipeline, expected: Trace, steps: Columns, stepped: Columns, options: Options
) -> Comparer:
    """Return a comparer of expected steps with the actual engine's steps, each as a candidate with one step."""
    left, right = (build_trace(run, actual.engine, columns, None) for columns in (steps, stepped))
    no_sum = {"candidates.log_probability"}
    left = replace(left, header=expected.header, fields=expected.fields - no_sum)
    right = replace(right, fields=right.fields - no_sum)
    return Comparer(left, right, options._replace(lockstep=True))


def compare_in_lockstep(stepper: Comparer, free: Comparer, columns: Columns) -> tuple[Comparison, Views]:
    """Compare in lockstep, and add the divergences of the free run that no wrong step explains.

    Return the comparison, in which candidates are numbered as in the run, and both versions of each differing step.

    columns: those of the expected run
    """
    owner, first = find_owners(columns)
    stepped, views = restore_candidates(stepper.compare(), stepper.views, owner, first)
    benign = BenignCount()
    benign.join(stepper.benign, owner)
    ran = free.compare()
    wrong_steps = {(each.candidate, each.step) for each in stepped.divergences}
    if has_paths(columns):
        # A wrong level explains what comes after it.
        earliest = dict(sorted(wrong_steps, reverse=True))
        unexplained = [each for each in ran.divergences if each.step < earliest.get(each.candidate, each.step + 1)]
    else:
        unexplained = [each for each in ran.divergences if not _explanations(each) & wrong_steps]
    reasons = tuple(dict.fromkeys((*stepped.reasons, *ran.reasons)))
    whole = {name: getattr(ran.coverage, name) for name in ("candidates", "candidates_expected", "candidates_actual")}
    coverage = msgspec.structs.replace(stepped.coverage, **whole)
    joined = _add(stepped, unexplained, reasons=reasons, benign=benign.listed(), coverage=coverage)
    return msgspec.structs.replace(joined, verdict=Verdict.INCONCLUSIVE) if reasons else joined, free.views | views


def describe_lockstep(divergences: Sequence[Divergence], engines: tuple[Engine, Engine]) -> tuple[str, ...]:
    """Return notes on the limits of lockstep: the loss, whole candidates, and further faults in a step."""
    if not divergences:
        return ()
    notes = [
        "lockstep splits no loss over the causes: metrics and ranks are those of the free run, in which each candidate"
        " has one cause, its first divergence; repeat the comparison without lockstep to see the loss"
    ]
    is_free = [each for each in divergences if each.step < 0 or each.stage == Stage.RECYCLE]
    if is_free:
        notes.append(
            f"{count_of(len(is_free), 'divergence')} cannot be attributed to a step taken from the expected goal: the"
            " difference is between whole candidates or ranks, or between slots"
        )
    of_steps = sum(each.step >= 0 for each in divergences)
    if of_steps and not all(isinstance(engine, ProbedEngine) for engine in engines):
        notes.append("one fault is named for each step, the earliest: an engine does not show its stages")
        return tuple(notes)
    num_assumed = sum(each.is_assumed for each in divergences)
    if num_assumed:
        notes.append(
            f"further faults behind the first one were not searched in {count_of(num_assumed, 'step')} not replayed"
        )
    return tuple(notes)


def _add(comparison: Comparison, found: Sequence[Divergence], **changes: Any) -> Comparison:
    """Add divergences to a comparison."""
    return msgspec.structs.replace(
        comparison,
        divergences=tuple(sorted([*comparison.divergences, *found], key=lambda each: (each.candidate, each.step))),
        level=highest_level([comparison.level, *(each.level for each in found)]),
        verdict=Verdict.DIVERGE if found and comparison.verdict is Verdict.AGREE else comparison.verdict,
        **changes,
    )


def _explanations(divergence: Divergence) -> set[tuple[int, int]]:
    """Return the steps that would explain a first divergence in a free run if one of them is wrong by itself."""
    step = divergence.step
    if step < 0 or divergence.field.startswith("candidates."):
        return set()
    return {(divergence.candidate, step), (divergence.candidate, step - 1)}


def follow_near_ties(
    comparer: Comparer,
    comparison: Comparison,
    run: Run,
    actual: Pipeline,
    phase: Phase,
    reference: Pipeline | None = None,
) -> tuple[Comparison, Views]:
    """Compare the steps after near-ties from the expected goals, since the engines may legitimately continue differently.

    In a search, the levels from the actual beams are compared as well, if a reference takes them.

    Return the comparison with the divergences found there, and both versions of each differing step.
    """
    if not comparison.near_ties:
        return comparison, comparer.views
    rows = np.array([tie.candidate for tie in comparison.near_ties])
    columns = comparer.pair_of(rows).expected.columns
    if not takes_steps(actual.engine, has_paths=has_paths(columns)):
        return comparison, comparer.views
    of, first = find_owners(columns)
    begins = np.cumsum(np.concatenate(([0], lockstep_columns(columns).candidates.num_steps)))[:-1]
    last = starts_of(columns.candidates.num_steps)[:-1] + [tie.step for tie in comparison.near_ties]
    follows = np.flatnonzero(begins > last[of])
    lock = select_candidates(lockstep_columns(columns), follows)
    with phase("following near-ties", 0):
        stepped = take_again(actual.engine, columns)
    if len(stepped.candidates.query) != len(of):
        raise UserError(
            f"returned {count_of(len(stepped.candidates.query), 'step')} from {count_of(len(of), 'position')}",
            where=f"engine {actual.engine.info.name}",
            fix="return one candidate with one step for each position, in the order given; in a search, one with one level",
        )
    stepped = select_candidates(stepped, follows)
    owner, first = rows[of[follows]], first[follows]
    later = compare_steps(run, actual, comparer.expected, lock, stepped, comparer.alike)
    named, views = restore_candidates(later.compare(), later.views, owner, first) if len(owner) else (None, {})
    benign = BenignCount()
    benign.join(comparer.benign, np.arange(comparer.sources[0].num_candidates))
    if len(owner):
        benign.join(later.benign, owner)
    found, further = (named.divergences, named.near_ties) if named else ((), ())
    ties = [
        msgspec.structs.replace(tie, compared_after=int((owner == tie.candidate).sum())) for tie in comparison.near_ties
    ]
    if reference is not None and has_paths(columns):
        found = (
            *found,
            *_follow_actual_beams(comparer, comparison, run, (reference, actual), {each.candidate for each in found}),
        )
    followed = _add(
        comparison,
        found,
        benign=benign.listed(),
        near_ties=tuple(sorted([*ties, *further], key=lambda tie: (tie.candidate, tie.step))),
        coverage=msgspec.structs.replace(comparison.coverage, steps_after_near_ties=len(owner)),
    )
    return followed, comparer.views | views


def _follow_actual_beams(
    comparer: Comparer, comparison: Comparison, run: Run, pipelines: tuple[Pipeline, Pipeline], wrong: set[int]
) -> list[Divergence]:
    """Return the divergences of the levels that the actual engine took after near-ties, from its own beams.

    wrong: the candidates that are not judged again
    """
    reference, actual = pipelines
    ties = [tie for tie in comparison.near_ties if tie.candidate not in wrong]
    if not ties or not takes_steps(reference.engine, has_paths=True):
        return []
    rows = np.array([tie.candidate for tie in ties])
    columns = comparer.pair_of(rows).actual.columns
    of, first = find_owners(columns)
    follows = np.flatnonzero(first > np.array([tie.step for tie in ties])[of])
    expected = select_candidates(take_again(reference.engine, columns), follows)
    recorded = select_candidates(lockstep_columns(columns), follows)
    later = compare_steps(run, actual, comparer.expected, expected, recorded, comparer.alike)
    if not len(follows):
        return []
    named, _ = restore_candidates(later.compare(), {}, rows[of[follows]], first[follows])
    return [msgspec.structs.replace(each, evidence=f"{each.evidence}; {OF_ACTUAL}") for each in named.divergences]


def restore_candidates(
    comparison: Comparison, views: Views, owner: NDArray[np.integer], first: NDArray[np.integer]
) -> tuple[Comparison, Views]:
    """Replace the candidates of a lockstep comparison, one for each step or level, with those of the run.

    owner: int [n] the candidate of each in the run; first: int [n] the number to add to its steps
    """

    def of(position: int, step: int) -> tuple[int, int]:
        # An engine may return more steps than requested.
        at = min(position, len(owner) - 1)
        return int(owner[at]), step + int(first[at]) * (step >= 0)

    def name(each: Any) -> Any:
        candidate, step = of(each.candidate, each.step)
        return msgspec.structs.replace(each, candidate=candidate, step=step)

    named = msgspec.structs.replace(
        comparison,
        divergences=tuple(map(name, comparison.divergences)),
        near_ties=tuple(map(name, comparison.near_ties)),
    )
    return named, {of(*place): pair for place, pair in views.items()}


class Task(NamedTuple):
    """Two pipelines to compare on a run, and the rules of equality. tolerance: that of scores, if it was measured."""

    run: Run
    pipelines: tuple[Pipeline, Pipeline]
    equality: Equality
    tolerance: ScoreTolerance | None
    effort: Effort
    phase: Phase

    @property
    def options(self) -> Options:
        """The options of a comparison."""
        return Options(equality=self.equality, tolerance=self.tolerance)

    @property
    def engines(self) -> tuple[Engine, Engine]:
        """The expected and the actual engine."""
        return self.pipelines[0].engine, self.pipelines[1].engine

    @property
    def ranks(self) -> tuple[RankCandidates, RankCandidates]:
        """The functions by which the two sides rank candidates."""
        expected, actual = (partial(each.rank_in_dialect, self.run) for each in self.pipelines)
        return expected, actual


class Compared(NamedTuple):
    """Both traces, ranked under the same dialect, and the result of their comparison.

    stepper: the comparer of the steps from the expected goals; None if these were not compared
    """

    traces: Sequence[Trace]
    comparer: Comparer
    stepper: Comparer | None
    comparison: Comparison
    views: Views

    @property
    def parts(self) -> tuple[Comparer, ...]:
        """The comparers that found the differences."""
        return (self.comparer,) if self.stepper is None else (self.comparer, self.stepper)


def compare(task: Task, traces: tuple[Trace, ...], stepped: Columns | None) -> Compared:
    """Compare the traces: in lockstep, every step from the expected goals; else the free runs, and steps after near-ties.

    stepped: in lockstep, the actual engine's steps from the expected goals; else None
    """
    comparer = Comparer(traces[0], traces[1], task.options)
    actual = task.pipelines[1]
    if stepped is None:
        with task.phase("comparing", 0):
            ran = comparer.compare()
        found = follow_near_ties(comparer, ran, task.run, actual, task.phase, task.pipelines[0])
        return Compared(traces, comparer, None, *found)
    stepper = compare_steps(task.run, actual, traces[0], lockstep_columns(traces[0].columns), stepped, task.options)
    with task.phase("comparing", 0):
        return Compared(traces, comparer, stepper, *compare_in_lockstep(stepper, comparer, traces[0].columns))
