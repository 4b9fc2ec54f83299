"""Check equivalence: run many problems at once on both sides, and confirm each that differs by itself."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Final, NamedTuple

import msgspec
import numpy as np

from kgverify.comparison.compare import Comparer
from kgverify.comparison.exercise.count import count_columns
from kgverify.comparison.exercise.exercise import NO_MINIMUM, NOT_EXERCISED, Exercise, Minimum
from kgverify.comparison.rankings import compare_rankings
from kgverify.comparison.result import Comparison, Divergence, Verdict
from kgverify.comparison.source import has_steps
from kgverify.errors import MissingDependency, UserError
from kgverify.garbage_collection import without_garbage_collection
from kgverify.progress import silent_phase
from kgverify.ranking.corrupt import ALL
from kgverify.runs.engine_makers import MakePipeline, compiled_maker, make_reference
from kgverify.runs.run import Pipeline, build_trace, rank_alike, reference_pipeline
from kgverify.testing.checking.failure import CRASH, UNDECIDED, Failure, Signature, sign
from kgverify.testing.checking.guard import THE_REFERENCE, CheckBug, guard, locate_bug
from kgverify.testing.checking.watchdog import EngineCrash, EngineHang
from kgverify.testing.problems.boundaries import draw_boundary_problem, fit_sizes
from kgverify.testing.problems.merge import Merged, group_problems, merge
from kgverify.testing.problems.problem import Problem
from kgverify.trace.model.columns import Columns, Rankings, are_equal, empty_columns, select_candidates
from kgverify.trace.model.score_error import ScoreError
from kgverify.trace.model.trace import Trace
from kgverify.verification.effort import FULL, Effort
from kgverify.verification.lockstep import follow_near_ties, lockstep_comparer
from kgverify.verification.rounding import EngineRun, settle_score_error
from kgverify.verification.verify import Verification, verify

UNEXPLAINED: Final = FULL._replace(explained=0)
"""The effort for a divergence of which only the stage and the class are asked."""
MOST_CONFIRMED: Final = 10
"""The default number of problems that `check_problems` confirms."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Problems in one run, and what the reference derives and ranks in it; it serves any number of engines.

    indices: of the problems, in the list that was divided into batches
    crash:   the exception of a foreign reference on these problems, whose columns are then empty; else None
    """

    indices: tuple[int, ...]
    merged: Merged
    pipeline: Pipeline
    columns: Columns
    rankings: Rankings | None
    crash: EngineCrash | None = None

    @cached_property
    def expected(self) -> Trace:
        """The reference's trace."""
        trace = build_trace(self.merged.run, self.pipeline.engine, self.columns, None)
        return replace(trace, rankings=self.rankings)


class Suspect(NamedTuple):
    """A problem that differs in the run of its batch.

    member: the index of the problem in the batch
    hangs:  whether the run did not end in time
    """

    batch: Batch
    member: int
    hangs: bool = False

    @property
    def number(self) -> int:
        """The index of the problem among those checked."""
        return self.batch.indices[self.member]


def check_problems(
    problems: Sequence[Problem],
    make_pipeline: MakePipeline | None = None,
    *,
    reference: MakePipeline = make_reference,
    lockstep: bool = False,
    most: int = MOST_CONFIRMED,
) -> list[Failure]:
    """Return where the pipeline under test (by default the eager evaluator) differs from the reference.

    The problems share as few runs as their limits, policies and numbers of corruptions allow. Everything recorded is
    compared, free-running, and with `lockstep` step by step as well. The first `most` problems that differ are
    confirmed, each by itself; there may be further ones.
    """
    make = make_pipeline or compiled_maker()
    return check_and_count(problems, make, reference=reference, lockstep=lockstep, most=most)[0]


def check_and_count(
    problems: Sequence[Problem],
    make_pipeline: MakePipeline,
    *,
    reference: MakePipeline = make_reference,
    lockstep: bool = False,
    most: int = MOST_CONFIRMED,
) -> tuple[list[Failure], Exercise]:
    """Return the failures like `check_problems`, and the exercise of the problems on which both sides agree."""
    suspects: list[Suspect] = []
    exercise = NOT_EXERCISED
    for batch in prepare_batches(problems, reference):
        found = find_suspects(batch, make_pipeline, lockstep=lockstep)
        exercise = exercise.plus(count_agreeing(batch, found))
        suspects += found
    suspects.sort(key=lambda suspect: suspect.number)
    return [confirm(suspect, make_pipeline, lockstep=lockstep) for suspect in suspects[:most]], exercise


def count_agreeing(batch: Batch, suspects: Sequence[Suspect]) -> Exercise:
    """Return the exercise, by the reference, of the problems of a batch on which both sides agree."""
    if batch.crash is not None:
        return NOT_EXERCISED
    columns = batch.columns
    if suspects:
        differing = [batch.indices.index(suspect.number) for suspect in suspects]
        owner = batch.merged.owner[columns.candidates.query]
        columns = select_candidates(columns, np.flatnonzero(~np.isin(owner, differing)))
    exercise = count_columns(columns, batch.merged.graph.program, batch.pipeline.engine.info)
    return msgspec.structs.replace(exercise, unused_rules=())


def prepare_batches(problems: Sequence[Problem], reference: MakePipeline = make_reference) -> list[Batch]:
    """Merge the problems into as few runs as possible, and prove each with the reference."""
    return [prepare_batch(group, problems, reference) for group in group_problems(problems)]


def prepare_batch(
    indices: Sequence[int], problems: Sequence[Problem], reference: MakePipeline = make_reference
) -> Batch:
    """Merge the problems at some indices, which have one `key`, into one run, and prove it with the reference."""
    return _prepare(indices, [problems[i] for i in indices], reference)


def prepare_alone(
    seed: int, index: int, number: int, problem: Problem | None = None, reference: MakePipeline = make_reference
) -> Batch:
    """Return the problem that runs alone at an index of a seed's sequence, proved by the reference.

    number:  of the problem, in the list that was divided into batches
    problem: the one at the index, if it was drawn before
    """
    drawn = draw_boundary_problem(seed, index) if problem is None else problem
    (batch,) = prepare_batches([drawn], reference)
    merged = batch.merged
    if reference is not make_reference:
        # The sizes are fitted to the steps of kgverify's semantics.
        return replace(batch, indices=(number,))
    fitted = fit_sizes(merged.problems[0], merged.graph.program, batch.columns, seed, index)
    return replace(batch, indices=(number,), merged=replace(merged, problems=(fitted,), sizes=fitted.sizes))


def find_suspects(batch: Batch, make_pipeline: MakePipeline, *, lockstep: bool = False) -> list[Suspect]:
    """Return the problems of a batch that differ in its run or, if the engine raises an exception, that cause it."""
    try:
        with without_garbage_collection():
            differing = _find_suspicious(batch, make_pipeline, lockstep)
    except EngineCrash as crash:
        hangs = isinstance(crash, EngineHang)
        if len(batch.indices) == 1:
            return [Suspect(batch, 0, hangs)]
        found: list[Suspect] = []
        middle = len(batch.indices) // 2
        for part in (slice(0, middle), slice(middle, None)):
            if found and hangs:
                # Another one would take as long again.
                break
            half = _prepare(batch.indices[part], batch.merged.problems[part], batch.merged.reference)
            found += find_suspects(half, make_pipeline, lockstep=lockstep)
        # No part fails by itself: the first problem represents the group.
        return found or [Suspect(batch, 0, hangs)]
    return [Suspect(batch, index) for index in sorted(differing)]


def confirm(suspect: Suspect, make_pipeline: MakePipeline, *, lockstep: bool = False) -> Failure:
    """Return the failure of a suspect: alone if possible, else in the smallest group that halving finds."""
    problem, reference = suspect.batch.merged.problems[suspect.member], suspect.batch.merged.reference
    attempts = [problem]
    if problem.queries and problem.num_corruptions not in (0, ALL):
        # In a batch other corruptions are drawn, since the draw depends on ids.
        attempts.append(replace(problem, num_corruptions=ALL))
    for attempt in attempts:
        failure = judge(attempt, make_pipeline, reference=reference, index=suspect.number, lockstep=lockstep)
        if failure is not None:
            return failure
    group, member = _shrink_group(suspect.batch.merged, suspect.member, make_pipeline, lockstep)
    return _judge_group(merge(group, reference), member, make_pipeline, suspect.number, lockstep) or Failure(
        index=suspect.number,
        problem=problem,
        group=tuple(group),
        signature=Signature("", "", UNDECIDED, "differs in one run and not in the next"),
        message="the difference did not occur again",
    )


def judge(
    problem: Problem,
    make_pipeline: MakePipeline | None = None,
    *,
    reference: MakePipeline = make_reference,
    index: int = 0,
    lockstep: bool = False,
) -> Failure | None:
    """Return the failure of one problem, run alone and explained by replay; None if both sides agree."""
    return _judge_group(merge([problem], reference), 0, make_pipeline or compiled_maker(), index, lockstep)


def verify_problems(
    problems: Sequence[Problem],
    make_pipeline: MakePipeline | None = None,
    *,
    reference: MakePipeline = make_reference,
    lockstep: bool = False,
    minimum: Minimum = NO_MINIMUM,
) -> Verification:
    """Verify problems in one run, and return the whole report. UserError unless they can share one."""
    merged = merge(problems, reference)
    return _verify(merged, merged.expected, make_pipeline or compiled_maker(), lockstep=lockstep, minimum=minimum)


def _verify(
    merged: Merged,
    expected: Pipeline,
    make_pipeline: MakePipeline,
    *,
    lockstep: bool,
    minimum: Minimum = NO_MINIMUM,
    effort: Effort = FULL,
) -> Verification:
    actual = merged.with_unranked(make_pipeline(merged.run, merged.sizes))
    return verify(
        merged.run,
        expected,
        actual,
        lockstep=lockstep,
        check_determinism=False,
        minimum=minimum,
        effort=effort,
    )


def _prepare(indices: Sequence[int], problems: Sequence[Problem], reference: MakePipeline) -> Batch:
    with without_garbage_collection():
        merged = merge(problems, reference)
        try:
            pipeline = _make_expected(merged)
            columns = pipeline.engine.prove(pipeline.draw_for(merged.run))
            if reference is not make_reference:
                _check_consistent(merged, pipeline, columns)
            rankings = pipeline.rank_finite(merged.run, columns.candidates)
        except EngineCrash as crash:
            unused = reference_pipeline(merged.run)
            return Batch(tuple(indices), merged, unused, empty_columns(), None, crash)
        return Batch(tuple(indices), merged, pipeline, columns, rankings)


def _make_expected(merged: Merged) -> Pipeline:
    """Make the reference's pipeline. The exceptions of kgverify's own reference are bugs, those of others crashes."""
    make = merged.reference
    guarded = make if make is make_reference else guard(make, THE_REFERENCE)
    return merged.with_unranked(guarded(merged.run, merged.sizes))


def _check_consistent(merged: Merged, pipeline: Pipeline, columns: Columns) -> None:
    """Raise EngineCrash for a foreign reference's columns of wrong lengths or ids."""
    try:
        build_trace(merged.run, pipeline.engine, columns, None)
    except UserError as error:
        raise EngineCrash(str(error), f"{type(error).__name__} of {THE_REFERENCE}") from error


def _find_suspicious(batch: Batch, make_pipeline: MakePipeline, lockstep: bool) -> set[int]:
    """Return the indices in the batch of the problems that differ.

    EngineCrash if the engine under test raises an exception; CheckBug for an exception of kgverify's own.
    """
    guarded = guard(make_pipeline)
    if batch.crash is not None:
        raise batch.crash
    try:
        return _compare(batch, guarded, lockstep, is_quick=len(batch.indices) == 1)
    except (EngineCrash, MissingDependency):
        raise
    except UserError as error:
        # The result of the engine is inconsistent.
        raise EngineCrash(str(error), type(error).__name__) from error
    except Exception as error:

        def again(part: Sequence[Problem]) -> object:
            return _compare(_prepare(range(len(part)), part, batch.merged.reference), guarded, lockstep)

        raise locate_bug(batch.merged.problems, error, again) from error


def _compare(batch: Batch, make_pipeline: MakePipeline, lockstep: bool, *, is_quick: bool = False) -> set[int]:
    """Return the indices in the batch of the problems that differ.

    is_quick: whether columns that are equal without any tolerance need no comparison, which takes as long as a small run
    """
    merged, run = batch.merged, batch.merged.run
    pipeline = merged.with_unranked(make_pipeline(run, merged.sizes))
    columns = pipeline.engine.prove(pipeline.draw_for(run))
    found: set[int] = set()
    accepted: ScoreError = None
    build = partial(build_trace, run, pipeline.engine, columns, None)
    # Only consistent columns can be ranked.
    trace = None if is_quick and are_equal(batch.columns, columns) else build()
    rankings = pipeline.rank_finite(run, columns.candidates)
    if trace is not None or not are_equal(batch.rankings or (), rankings or ()):
        traces = batch.expected, replace(trace or build(), rankings=rankings)
        sides = (
            EngineRun("expected", batch.pipeline.engine, traces[0]),
            EngineRun("actual", pipeline.engine, traces[1]),
        )
        accepted = settle_score_error(sides, None)
        expected, actual = rank_alike(run, (batch.pipeline, pipeline), traces)
        comparer = Comparer(expected, actual, score_error=accepted)
        comparison, _ = follow_near_ties(comparer, comparer.compare(), run, pipeline, silent_phase)
        found = _find_differing(merged, compare_rankings(comparison, expected, actual))
    if lockstep and all(has_steps(each.engine.info) for each in (batch.pipeline, pipeline)):
        stepper = lockstep_comparer(run, batch.expected, pipeline, silent_phase, accepted)
        found |= _find_differing(merged, stepper.compare())
    return found


def _find_differing(merged: Merged, comparison: Comparison) -> set[int]:
    if comparison.verdict is Verdict.AGREE:
        return set()
    return {_owner(merged, divergence) for divergence in comparison.divergences} or {0}


def _owner(merged: Merged, divergence: Divergence) -> int:
    """Return the index of the problem that a divergence is about; the last one's if it names no query."""
    return (
        int(merged.owner[divergence.query]) if 0 <= divergence.query < len(merged.owner) else len(merged.problems) - 1
    )


def _judge_group(
    merged: Merged, member: int, make_pipeline: MakePipeline, index: int, lockstep: bool
) -> Failure | None:
    group = merged.problems
    failure = partial(Failure, index=index, problem=group[member], group=group)
    guarded = guard(make_pipeline)
    try:
        report = _verify(merged, _make_expected(merged), guarded, lockstep=lockstep, effort=UNEXPLAINED).report
        if lockstep and not report.divergences:
            report = _verify(merged, _make_expected(merged), guarded, lockstep=False, effort=UNEXPLAINED).report
    except EngineCrash as crash:
        return failure(signature=Signature("", "", crash.kind, crash.situation), message=str(crash))
    except MissingDependency:
        raise
    except UserError as error:
        # The result of one engine is inconsistent.
        return failure(signature=Signature("", "", CRASH, type(error).__name__), message=str(error))
    except Exception as error:
        raise CheckBug(f"{type(error).__name__}: {error}", tuple(group)) from error
    own = [divergence for divergence in report.divergences if _owner(merged, divergence) == member]
    divergence = next(iter(own or report.divergences), None)
    if divergence is not None:
        return failure(signature=sign(report, divergence), divergence=divergence)
    if report.verdict is Verdict.AGREE:
        return None
    return failure(signature=Signature("", "", UNDECIDED), message="; ".join(report.reasons))


def _shrink_group(merged: Merged, index: int, make_pipeline: MakePipeline, lockstep: bool) -> tuple[list[Problem], int]:
    """Return a smaller group in which something still differs, and the index of the problem that does."""
    group, blamed = list(merged.problems), index
    while len(group) > 1:
        middle = len(group) // 2
        halves = [(0, middle), (middle, len(group))]
        # The half of the blamed problem first, then the other.
        halves.sort(key=lambda half: not half[0] <= blamed < half[1])
        for begin, end in halves:
            part = group[begin:end]
            try:
                batch = _prepare(range(len(part)), part, merged.reference)
                found = sorted(_find_suspicious(batch, make_pipeline, lockstep))
            except EngineCrash:
                found = [0]
            if found:
                group, blamed = part, blamed - begin if blamed - begin in found else found[0]
                break
        else:
            return group, blamed
    return group, blamed
