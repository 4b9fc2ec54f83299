"""A case: problems in one run, and the results of the pipeline under test, computed once for all laws."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.step_view import Names, StepReader, StepView
from kgverify.engines.policy import Policy
from kgverify.engines.protocol import Engine, Positions, positions_of
from kgverify.engines.sizes import Sizes
from kgverify.program.limits import Limits
from kgverify.program.outcomes import Side
from kgverify.program.program import Program
from kgverify.program.stages import Stage
from kgverify.ranking.groups import take_candidates
from kgverify.runs.engine_makers import MakePipeline
from kgverify.runs.run import Pipeline, Run, build_trace
from kgverify.step.clauses import Clauses
from kgverify.testing.problems.merge import Merged
from kgverify.trace.model.columns import Candidates, CandidateSet, Columns, Rankings, empty_columns, starts_of
from kgverify.trace.model.score_error import accept_score_error
from kgverify.trace.model.validate import check_columns, check_ids


def read_steps(columns: Columns) -> list[StepView]:
    """Return the steps in order, as views."""
    reader = StepReader(columns)
    return [reader.read(row) for row in range(len(columns.steps.depth))]


class Finding(NamedTuple):
    """A violation of a law in a case.

    candidate: its row in the columns of the case; -1 if the finding is not about one
    step:      in its derivation; -1 if the finding is not about one
    stage:     the stage that the law is about; None for an exception
    field:     the value that differs
    query:     of the run, if the finding is not about a candidate
    """

    candidate: int
    step: int
    stage: Stage | None
    field: str
    expected: str
    actual: str
    query: int = -1


T = TypeVar("T")

Value: TypeAlias = str | NDArray[np.generic] | Callable[[int], object]
"""A text, or what a row has: an array, or a function of the row."""


def _value_at(value: Value, row: int) -> object:
    return value if isinstance(value, str) else value(row) if callable(value) else value[row]


@dataclass(frozen=True, eq=False)
class Case:
    """Problems in one run under one pipeline."""

    merged: Merged
    make_pipeline: MakePipeline

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
        """The limits that all problems have."""
        return self.run.limits

    @property
    def sizes(self) -> Sizes:
        """The sizes of the batch."""
        return self.merged.sizes

    @cached_property
    def pipeline(self) -> Pipeline:
        """The pipeline under test."""
        return self.make_pipeline(self.run, self.sizes)

    @property
    def engine(self) -> Engine:
        """The engine under test."""
        return self.pipeline.engine

    @cached_property
    def ranked_queries(self) -> list[int]:
        """The queries that are ranked among their corruptions."""
        return [query for query in self.run.queries if self.merged.is_ranked[query]]

    def draw(self, queries: Sequence[int], num_corruptions: int | None = None) -> CandidateSet:
        """Draw the corruptions of these queries with the pipeline under test."""
        num = self.run.num_corruptions if num_corruptions is None else num_corruptions
        return self.pipeline.draw(self.run.graph, self.run.split, queries, num, self.run.seed)

    @cached_property
    def candidates(self) -> CandidateSet:
        """The candidates, ranked and unranked, in the order in which they are given to the engine."""
        return self.merged.with_unranked(self.pipeline).draw_for(self.run)

    @cached_property
    def columns(self) -> Columns:
        """The engine's results for the candidates. UserError if the columns are inconsistent."""
        columns, program = self.engine.prove(self.candidates), self.program
        where = f"engine {self.engine.info.name}"
        check_columns(columns, where, num_rules=len(program.rules), num_facts=len(program.facts))
        check_ids(columns, program.symbols, where)
        return columns

    @cached_property
    def is_aligned(self) -> bool:
        """True if the columns list each candidate once, in the order given."""
        reported = self.columns.candidates
        pairs: Any = zip(self.candidates, (reported.query, reported.side, reported.atom), strict=True)
        return all(np.array_equal(left, right) for left, right in pairs)

    @cached_property
    def positions(self) -> Positions:
        """Every step of the run as a position."""
        return positions_of(self.columns)

    @cached_property
    def rankings(self) -> Rankings | None:
        """The pipeline's ranks of the results; None if a log-probability is not finite."""
        return self.rank(self.columns.candidates)

    def rank(self, candidates: Candidates) -> Rankings | None:
        """Rank the candidates that are in a ranking; None if a log-probability is not finite."""
        rows = np.flatnonzero(candidates.side != Side.NONE)
        return self.pipeline.rank_finite(self.run, take_candidates(candidates, rows))

    @cached_property
    def steps(self) -> list[StepView]:
        """The steps of the run."""
        return read_steps(self.columns)

    def steps_until(self, row: int) -> list[StepView]:
        """Return the steps of a derivation up to one of them, given its row."""
        return self.steps[int(self.first_step[self.owner[row]]) : row + 1]

    @cached_property
    def owner(self) -> NDArray[np.int64]:
        """The candidate's row of each step, int64 [T]."""
        num_steps = self.columns.candidates.num_steps
        return np.repeat(np.arange(len(num_steps)), num_steps)

    @cached_property
    def step_of(self) -> NDArray[np.int64]:
        """The step's row of each resolvent, int64 [R]."""
        num = self.columns.steps.num_resolvents
        return np.repeat(np.arange(len(num)), num)

    @cached_property
    def first_step(self) -> NDArray[np.int64]:
        """The index at which the steps of each candidate begin, int64 [N + 1]."""
        return starts_of(self.columns.candidates.num_steps)

    @cached_property
    def first_resolvent(self) -> NDArray[np.int64]:
        """The index at which the resolvents of each step begin, int64 [T + 1]."""
        return starts_of(self.columns.steps.num_resolvents)

    @cached_property
    def clauses(self) -> Clauses:
        """The program in the form of the plain resolution of the laws."""
        excludes = self.limits.exclude_query and self.limits.dialect.exclusion == "always"
        return Clauses(self.program, exclude_query=excludes)

    @cached_property
    def score_error(self) -> float:
        """The bound on a score's rounding error, absolute: what the engine declares, up to the judge's bound."""
        return accept_score_error(self.engine.info, self.run.policy.info)

    @cached_property
    def names(self) -> Names:
        """The renderer of ids in names."""
        return Names(build_trace(self.run, self.engine, empty_columns(), None))

    def vary(self, *, limits: Limits | None = None, policy: Policy | None = None, sizes: Sizes | None = None) -> Engine:
        """Make the engine again, with other limits or other sizes of the batch."""
        run = replace(self.run, limits=limits or self.limits, policy=policy or self.run.policy)
        return self.make_pipeline(run, sizes or self.sizes).engine

    def problem_of_name(self, name: str) -> int:
        """Return the index of the problem of a predicate or a constant: in a run of several it stands before the name."""
        return int(name.partition(":")[0]) if len(self.merged.problems) > 1 else 0

    def by_problem(self, items: Iterable[T], name_of: Callable[[T], str]) -> dict[int, list[T]]:
        """Return items of the program by the problems of their names."""
        groups: dict[int, list[T]] = {}
        for item in items:
            groups.setdefault(self.problem_of_name(name_of(item)), []).append(item)
        return groups

    def atom_name(self, atom: Sequence[int]) -> str:
        """Render an atom in names."""
        predicate, first, second = map(int, atom)
        return self.names.atom((predicate, first, second))

    def of_step(self, row: int | np.integer, stage: Stage, field: str, expected: object, actual: object) -> Finding:
        """Return a finding about a row of the steps."""
        candidate = int(self.owner[row])
        return Finding(candidate, int(row) - int(self.first_step[candidate]), stage, field, str(expected), str(actual))

    def of_steps(
        self,
        is_wrong: NDArray[np.bool_],
        stage: Stage,
        field: str,
        expected: Value,
        actual: Value,
        step_of: NDArray[np.integer] | None = None,
    ) -> Iterator[Finding]:
        """Yield a finding about the step of each row that is wrong, bool [n]. step_of: int [n]; None for rows of steps."""
        for row in np.flatnonzero(is_wrong).tolist():
            step = row if step_of is None else step_of[row]
            yield self.of_step(step, stage, field, _value_at(expected, row), _value_at(actual, row))

    def of_resolvents(
        self, is_wrong: NDArray[np.bool_], stage: Stage, field: str, expected: Value, actual: Value
    ) -> Iterator[Finding]:
        """Yield a finding about the step of each resolvent that is wrong, bool [R]."""
        return self.of_steps(is_wrong, stage, field, expected, actual, self.step_of)

    def of_candidates(
        self, is_wrong: NDArray[np.bool_], stage: Stage, field: str, expected: Value, actual: Value
    ) -> Iterator[Finding]:
        """Yield a finding about each candidate that is wrong, bool [N]."""
        for row in np.flatnonzero(is_wrong).tolist():
            yield Finding(row, -1, stage, field, str(_value_at(expected, row)), str(_value_at(actual, row)))

    def problem_of(self, finding: Finding) -> int:
        """Return the index of the problem that a finding is about; the last one's if it is about none."""
        query = finding.query
        if 0 <= finding.candidate < len(self.columns.candidates.query):
            query = int(self.columns.candidates.query[finding.candidate])
        return int(self.merged.owner[query]) if 0 <= query < len(self.merged.owner) else len(self.merged.problems) - 1
