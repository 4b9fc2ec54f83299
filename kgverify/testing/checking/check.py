"""Check equivalence: run many problems at once on both sides, and confirm each differing problem by itself."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Final, NamedTuple

import msgspec
import numpy as np

from kgverify.comparison.comparable import has_steps, lockstep_columns
from kgverify.comparison.compare import Comparer, Options
from kgverify.comparison.equality import Equality
from kgverify.comparison.exercise.count import count_columns
from kgverify.comparison.exercise.exercise import NO_MINIMUM, NOT_EXERCISED, Exercise
from kgverify.comparison.rankings import compare_rankings
from kgverify.comparison.result import Comparison, Divergence, Verdict
from kgverify.engines.beams import takes_steps
from kgverify.errors import MissingDependency, UserError
from kgverify.garbage_collection import without_garbage_collection
from kgverify.progress import silent_phase
from kgverify.ranking.draw import ALL
from kgverify.runs.delta_debugging import halve
from kgverify.runs.engine_makers import MakePipeline, compiled_maker, make_reference
from kgverify.runs.run import Pipeline, build_trace, rank_alike, reference_pipeline
from kgverify.testing.checking.failure import CRASH, UNDECIDED, Failure, Signature, sign
from kgverify.testing.checking.guard import (
    THE_REFERENCE,
    CheckBug,
    EngineCrash,
    EngineHang,
    EngineRefusal,
    guard,
    locate_bug,
)
from kgverify.testing.problems.decode import draw_boundary_problem, fit_sizes
from kgverify.testing.problems.merge import Merged, group_problems, merge
from kgverify.testing.problems.problem import Problem
from kgverify.trace.model.columns import Columns, Rankings, are_equal, empty_columns, select_candidates
from kgverify.trace.model.paths import has_paths
from kgverify.trace.model.trace import Trace
from kgverify.verification.judgement import FULL, UNEXPLAINED, Effort
from kgverify.verification.lockstep import compare_steps, follow_near_ties, step_from_goals
from kgverify.verification.rounding import EngineRun, measure_tolerance
from kgverify.verification.verify import Verification, verify

ALONE: Final = tuple(Equality(lockstep=each, determinism=False, minimum=NO_MINIMUM) for each in (False, True))
"""The equality for a problem by itself, without and with lockstep."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Problems in one run, with the derivations and ranks of the reference.

    It serves any number of engines.

    indices: the indices of the problems in the list that was divided into batches
    crash:   the exception that a foreign reference raised on these problems; its columns are then empty. None without
             an exception
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

    def leave_open(self, message: str, situation: str = "") -> Failure:
        """Return a failure that decides nothing."""
        problem = self.batch.merged.problems[self.member]
        signature = Signature("", "", UNDECIDED, situation)
        return Failure(index=self.number, problem=problem, group=(problem,), signature=signature, message=message)


@dataclass(frozen=True)
class Checker:
    """The engine under test, and how it is compared.

    make:      makes the engine under test
    reference: makes the engine for comparison
    lockstep:  whether every step is also compared from the expected goal, in addition to the free-running derivations
    """

    make: MakePipeline = field(default_factory=compiled_maker)
    reference: MakePipeline = make_reference
    lockstep: bool = False

    def find_suspects(self, batch: Batch) -> list[Suspect]:
        """Return the problems of a batch that differ in its run. EngineRefusal if an engine declines the batch.

        If the engine raises an exception, return the problems that cause it.
        """
        try:
            with without_garbage_collection():
                differing = self._find_suspicious(batch)
        except EngineRefusal:
            raise
        except EngineCrash as crash:
            hangs = isinstance(crash, EngineHang)
            found: list[Suspect] = []
            middle = len(batch.indices) // 2
            for part in (slice(0, middle), slice(middle, None)) if middle else ():
                if found and hangs:
                    # Another hang would take the same time again.
                    break
                half = prepare_batch(batch.indices[part], batch.merged.problems[part], batch.merged.reference)
                found += self.find_suspects(half)
            # No part of the group fails by itself, so the first problem represents the group.
            return found or [Suspect(batch, 0, hangs)]
        return [Suspect(batch, index) for index in sorted(differing)]

    def confirm(self, suspect: Suspect) -> Failure:
        """Return the failure of a suspect, alone if possible, else in the smallest group found by halving."""
        problem, number = suspect.batch.merged.problems[suspect.member], suspect.number
        attempts = [problem]
        if problem.queries and problem.num_corruptions not in (0, ALL):
            # The corruptions drawn in a batch differ, since the draw depends on ids.
            attempts.append(replace(problem, num_corruptions=ALL))
        for attempt in attempts:
            if (failure := self.judge(attempt, number)) is not None:
                return failure
        group = halve(suspect.batch.merged.problems, lambda part: bool(self._find_in_group(part)), first=problem)
        found, blamed = self._find_in_group(group), group.index(problem) if problem in group else 0
        member = blamed if blamed in found or not found else min(found)
        return self._judge_member(group, member, number) or replace(
            suspect.leave_open("the difference did not occur again", "differs in one run and not in the next"),
            group=tuple(group),
        )

    def judge(self, problem: Problem, index: int = 0) -> Failure | None:
        """Return the failure of one problem, run alone and explained by replay; None if both sides agree."""
        return self._judge_member([problem], 0, index)

    def _find_in_group(self, group: Sequence[Problem]) -> set[int]:
        """Return the problems of a group that differ in one run.

        If an engine raises an exception, return the first problem.
        """
        try:
            return self._find_suspicious(prepare_batch(range(len(group)), group, self.reference))
        except EngineCrash:
            return {0}

    def _find_suspicious(self, batch: Batch) -> set[int]:
        """Return the indices in the batch of the problems that differ.

        EngineCrash if the engine under test raises an exception; CheckBug if kgverify itself raises one.
        """
        guarded = replace(self, make=guard(self.make))
        if batch.crash is not None:
            raise batch.crash
        try:
            return guarded._compare(batch)
        except (EngineCrash, MissingDependency):
            raise
        except UserError as error:
            # The result of the engine is inconsistent.
            raise EngineCrash(str(error), type(error).__name__) from error
        except Exception as error:

            def again(part: Sequence[Problem]) -> object:
                return guarded._compare(prepare_batch(range(len(part)), part, batch.merged.reference))

            raise locate_bug(batch.merged.problems, error, again) from error

    def _compare(self, batch: Batch) -> set[int]:
        """Return the indices in the batch of the problems that differ. Columns that are exactly equal are not compared."""
        merged, run = batch.merged, batch.merged.run
        pipeline = merged.with_unranked(self.make(run, merged.sizes))
        columns = pipeline.engine.prove(pipeline.draw_for(run))
        found: set[int] = set()
        build = partial(build_trace, run, pipeline.engine, columns, None)
        # Only consistent columns can be ranked.
        trace = None if are_equal(batch.columns, columns) else build()
        rankings = pipeline.rank_finite(run, columns.candidates)
        is_equal = trace is None and are_equal(batch.rankings or (), rankings or ())
        stepped = None
        engines, searches = (batch.pipeline.engine, pipeline.engine), has_paths(batch.columns)
        if self.lockstep and all(has_steps(each.info) and takes_steps(each, has_paths=searches) for each in engines):
            stepped = step_from_goals(batch.expected, pipeline, silent_phase)
        if is_equal and stepped is None:
            return found
        traces = batch.expected, replace(trace or build(), rankings=rankings)
        sides = (
            EngineRun("expected", batch.pipeline.engine, traces[0]),
            EngineRun("actual", pipeline.engine, traces[1], stepped=stepped),
        )
        options = Options(tolerance=measure_tolerance(sides))
        if not is_equal:
            expected, actual = rank_alike(run, (batch.pipeline, pipeline), traces)
            comparer = Comparer(expected, actual, options)
            comparison, _ = follow_near_ties(comparer, comparer.compare(), run, pipeline, silent_phase)
            found = _find_differing(merged, compare_rankings(comparison, expected, actual))
        if stepped is not None:
            steps = lockstep_columns(batch.columns)
            stepper = compare_steps(run, pipeline, batch.expected, steps, stepped, options)
            found |= _find_differing(merged, stepper.compare())
        return found

    def _judge_member(self, problems: Sequence[Problem], member: int, index: int) -> Failure | None:
        """Return the failure of one of the problems of a run."""
        merged = merge(problems, _guard_reference(self.reference))
        group = merged.problems
        failure = partial(Failure, index=index, problem=group[member], group=group)
        check = partial(verify_problems, merged, guard(self.make), effort=UNEXPLAINED)
        try:
            report = check(ALONE[self.lockstep]).report
            if self.lockstep and not report.divergences:
                report = check(ALONE[False]).report
        except EngineCrash as crash:
            return failure(signature=Signature("", "", crash.kind, crash.situation), message=str(crash))
        except MissingDependency:
            raise
        except UserError as error:
            # The result of one engine is inconsistent.
            return failure(signature=Signature("", "", CRASH, type(error).__name__), message=str(error))
        except Exception as error:
            raise CheckBug(f"{type(error).__name__}: {error}", group) from error
        own = [divergence for divergence in report.divergences if _owner(merged, divergence) == member]
        divergence = next(iter(own or report.divergences), None)
        if divergence is not None:
            return failure(signature=sign(report, divergence), divergence=divergence)
        if report.verdict is Verdict.AGREE:
            return None
        return failure(signature=Signature("", "", UNDECIDED), message="; ".join(report.reasons))


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
    return [prepare_batch(group, [problems[i] for i in group], reference) for group in group_problems(problems)]


@without_garbage_collection()
def prepare_batch(
    indices: Sequence[int], problems: Sequence[Problem], reference: MakePipeline = make_reference
) -> Batch:
    """Merge the problems with some indices, which share one `key`, into one run, and prove it with the reference."""
    merged = merge(problems, reference)
    try:
        pipeline = merged.with_unranked(_guard_reference(reference)(merged.run, merged.sizes))
        columns = pipeline.engine.prove(pipeline.draw_for(merged.run))
        if reference is not make_reference:
            build_trace(merged.run, pipeline.engine, columns, None)
        return Batch(tuple(indices), merged, pipeline, columns, pipeline.rank_finite(merged.run, columns.candidates))
    except (EngineCrash, UserError) as error:
        if reference is make_reference or isinstance(error, MissingDependency):
            raise
        crash = error
        if not isinstance(crash, EngineCrash):
            # Its columns are of wrong lengths or ids.
            crash = EngineCrash(str(error), f"{type(error).__name__} of {THE_REFERENCE}")
        return Batch(tuple(indices), merged, reference_pipeline(merged.run), empty_columns(), None, crash)


def prepare_alone(
    seed: int, index: int, number: int, problem: Problem | None = None, reference: MakePipeline = make_reference
) -> Batch:
    """Return the problem that runs alone at an index of a seed's sequence, proved by the reference.

    number:  the number of the problem in the list that was divided into batches
    problem: the problem at the index, if it was drawn before
    """
    batch = prepare_batch([number], [draw_boundary_problem(seed, index) if problem is None else problem], reference)
    if reference is not make_reference:
        # The sizes are fitted to the steps of kgverify's semantics.
        return batch
    merged = batch.merged
    fitted = fit_sizes(merged.problems[0], merged.graph.program, batch.columns, seed, index)
    return replace(batch, merged=replace(merged, problems=(fitted,), sizes=fitted.sizes))


def verify_problems(
    merged: Merged, make_pipeline: MakePipeline, equality: Equality = ALONE[False], effort: Effort = FULL
) -> Verification:
    """Verify problems in one run, and return the whole report."""
    actual = merged.with_unranked(make_pipeline(merged.run, merged.sizes))
    return verify(merged.run, merged.expected, actual, equality=equality, effort=effort)


def _guard_reference(reference: MakePipeline) -> MakePipeline:
    """Return the maker of the reference. Exceptions of kgverify's own references are bugs; those of others are crashes."""
    return reference if reference is make_reference else guard(reference, THE_REFERENCE)


def _find_differing(merged: Merged, comparison: Comparison) -> set[int]:
    if comparison.verdict is Verdict.AGREE:
        return set()
    return {_owner(merged, divergence) for divergence in comparison.divergences} or {0}


def _owner(merged: Merged, divergence: Divergence) -> int:
    """Return the index of the problem that a divergence is about; of the last problem if it names no query."""
    return (
        int(merged.owner[divergence.query]) if 0 <= divergence.query < len(merged.owner) else len(merged.problems) - 1
    )
