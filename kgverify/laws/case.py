"""A case: problems in one run, and the results of the pipeline under test, computed once for all laws."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import pairwise, zip_longest
from typing import Any, NamedTuple, TypeVar

import numpy as np

from kgverify.comparison.step_view import Names, StepReader, StepView
from kgverify.engines.protocol import Engine, Positions, positions_of
from kgverify.program.fact_index import Ids
from kgverify.program.limits import Limits
from kgverify.program.outcomes import Side, Stage
from kgverify.program.program import Program
from kgverify.ranking.rank import take_candidates
from kgverify.runs.engine_makers import MakePipeline
from kgverify.runs.run import Pipeline, Run, build_trace
from kgverify.step.clauses import Atoms, Clauses
from kgverify.step.plain_step import Resolvent, Situation, match_facts, match_rules, prune, rename, resolve
from kgverify.testing.problems.merge import Merged
from kgverify.trace.model.columns import Candidates, CandidateSet, Columns, Rankings, select_candidates, starts_of
from kgverify.trace.model.digests import compute_digests
from kgverify.trace.model.score_tolerance import accept_score_error
from kgverify.trace.model.trace import Trace
from kgverify.trace.model.validate import check_ids
from kgverify.verification.rounding import EngineRun, measure_bounds


def read_steps(columns: Columns) -> list[StepView]:
    """Return the steps in order, as views."""
    reader = StepReader(columns)
    return [reader.read(row) for row in range(len(columns.steps.depth))]


class Finding(NamedTuple):
    """A violation of a law in a case.

    candidate: the row of the candidate in the columns of the case; -1 if the finding is not about a candidate
    step:      the number of the step in its derivation; -1 if the finding is not about a step
    stage:     the stage that the law is about; None for an exception
    field:     the value that differs
    query:     the index of a query of the run, if the finding is not about a candidate
    """

    candidate: int
    step: int
    stage: Stage | None
    field: str
    expected: object
    actual: object
    query: int = -1


T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Case:
    """Problems in one run under one pipeline."""

    merged: Merged
    make_pipeline: MakePipeline

    @cached_property
    def sample(self) -> Callable[[int], "Case"]:
        """A function of a number: the case of one candidate of each problem, with the results that they have among all.

        Other numbers take other candidates.
        """
        owner = self.merged.owner[self.columns.candidates.query]
        _, first, counts = np.unique(owner, return_index=True, return_counts=True)

        def take(number: int) -> Case:
            rows = first + (np.arange(len(first)) + number) % counts
            columns, case = select_candidates(self.columns, rows), replace(self)
            trace = replace(self.trace, columns=columns, digests=compute_digests(columns))
            # In the place of what these cached properties would compute.
            vars(case).update(pipeline=self.pipeline, rounding=self.rounding, trace=trace)
            vars(case).update(candidates=self.candidates.take(rows))
            return case

        return cache(take)

    @property
    def run(self) -> Run:
        """The run of all problems."""
        return self.merged.run

    @property
    def program(self) -> Program:
        """The program of all problems."""
        return self.run.graph.program

    @property
    def limits(self) -> Limits:
        """The limits, which all problems share."""
        return self.run.limits

    @cached_property
    def pipeline(self) -> Pipeline:
        """The pipeline under test."""
        return self.make_pipeline(self.run, self.merged.sizes)

    @property
    def engine(self) -> Engine:
        """The engine under test."""
        return self.pipeline.engine

    @cached_property
    def ranked_queries(self) -> list[int]:
        """The queries that are ranked among their corruptions."""
        return [query for query in self.run.queries if self.merged.is_ranked[query]]

    def draw(self, queries: Sequence[int], num_corruptions: int) -> CandidateSet:
        """Draw corruptions of some queries with the pipeline under test."""
        return self.pipeline.draw(self.run.graph, self.run.split, queries, num_corruptions, self.run.seed)

    @cached_property
    def candidates(self) -> CandidateSet:
        """The candidates, ranked and unranked, in the order given to the engine."""
        return self.merged.with_unranked(self.pipeline).draw_for(self.run)

    @cached_property
    def trace(self) -> Trace:
        """The trace of the engine's results for the candidates. UserError if its columns are inconsistent."""
        trace = build_trace(self.run, self.engine, self.engine.prove(self.candidates), None)
        check_ids(trace.columns, self.program.symbols, f"engine {self.engine.info.name}")
        return trace

    @property
    def columns(self) -> Columns:
        """The engine's results for the candidates. UserError if they are inconsistent."""
        return self.trace.columns

    @cached_property
    def misplaced(self) -> list[Finding]:
        """A finding about the first candidate that the columns list out of order, or not exactly once."""
        return self.find_misplaced(self.candidates, self.columns.candidates)

    def find_misplaced(self, given: CandidateSet | Candidates, reported: CandidateSet | Candidates) -> list[Finding]:
        """Return a finding about the first place where the reported candidates differ from the given ones, if any."""
        lists = (
            zip(each.query.tolist(), each.side.tolist(), each.atom.tolist(), strict=True) for each in (given, reported)
        )
        for position, (one, other) in enumerate(zip_longest(*lists)):
            if one != other:
                texts = [self.atom_name(each[2]) if each else "nothing more" for each in (one, other)]
                return [Finding(-1, -1, Stage.RECYCLE, f"candidate {position}", texts[0], texts[1], (one or other)[0])]
        return []

    @cached_property
    def positions(self) -> Positions:
        """Every step of the run as a position."""
        return positions_of(self.columns)

    def rank(self, candidates: Candidates) -> Rankings | None:
        """Rank the candidates that belong to a ranking. Return None if a log-probability is not finite."""
        rows = np.flatnonzero(candidates.side != Side.NONE)
        return self.pipeline.rank_finite(self.run, take_candidates(candidates, rows))

    @cached_property
    def steps(self) -> list[StepView]:
        """The steps of the run."""
        return read_steps(self.columns)

    @cached_property
    def derivations(self) -> list[list[StepView]]:
        """The steps of each candidate."""
        return [self.steps[a:b] for a, b in pairwise(starts_of(self.columns.candidates.num_steps).tolist())]

    @cached_property
    def places(self) -> list[tuple[int, int]]:
        """The row of the candidate and the number within the derivation, for each step."""
        return [(row, number) for row, steps in enumerate(self.derivations) for number in range(len(steps))]

    def walk(self) -> Iterator[tuple[tuple[int, int], StepView]]:
        """Yield each step with its place."""
        return zip(self.places, self.steps, strict=True)

    @cached_property
    def clauses(self) -> Clauses:
        """The program in the form that the plain resolution of the laws uses."""
        excludes = self.limits.exclude_query and self.limits.dialect.exclusion == "always"
        return Clauses(self.program, exclude_query=excludes)

    @cached_property
    def apply_clauses(self) -> Callable[[Atoms, Ids | None], list[Resolvent]]:
        """A function of a goal and the excluded atom: the resolvent of each clause, pruned and renamed. It remembers them."""

        def apply(goal: Atoms, excluded: Ids | None) -> list[Resolvent]:
            situation = Situation(self.clauses, self.limits, excluded, (goal,))
            made = resolve(situation, match_rules(situation, goal[0]), match_facts(situation, goal[0]))
            return rename(situation, prune(situation, made))

        return cache(apply)

    @cached_property
    def rounding(self) -> Callable[[], float]:
        """A function that returns the bound on the rounding error of a score: known for kgverify's engines, else measured."""

        def find() -> float:
            sides = EngineRun("expected", self.engine, self.trace), EngineRun("actual", self.engine, self.trace)
            if (measured := measure_bounds(sides)) is not None:
                return measured.value / 2
            return accept_score_error(self.engine.info, self.run.policy.info)

        return cache(find)

    @cached_property
    def names(self) -> Names:
        """The renderer that shows ids as names."""
        return Names(self.trace)

    def vary(self, **fields: Any) -> Engine:
        """Make the engine again, for a run with some fields changed."""
        return self.make_pipeline(replace(self.run, **fields), self.merged.sizes).engine

    def problem_of_name(self, name: str) -> int:
        """Return the index of the problem that a predicate or a constant belongs to.

        In a run of several problems, it precedes the name.
        """
        return int(name.partition(":")[0]) if len(self.merged.problems) > 1 else 0

    def by_problem(self, items: Iterable[T], name_of: Callable[[T], str]) -> dict[int, list[T]]:
        """Return items of the program, grouped by the problem that their names belong to."""
        groups: dict[int, list[T]] = {}
        for item in items:
            groups.setdefault(self.problem_of_name(name_of(item)), []).append(item)
        return groups

    def atom_name(self, atom: Sequence[int]) -> str:
        """Render an atom in names."""
        predicate, first, second = map(int, atom)
        return self.names.atom((predicate, first, second))

    def problem_of(self, finding: Finding) -> int:
        """Return the index of the problem that a finding is about; of the last problem if it concerns no particular one."""
        query = finding.query
        if 0 <= finding.candidate < len(self.columns.candidates.query):
            query = int(self.columns.candidates.query[finding.candidate])
        return int(self.merged.owner[query]) if 0 <= query < len(self.merged.owner) else len(self.merged.problems) - 1
