"""The proof slice: the clauses of a graph that both engines touched before a divergence, and the facts before them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from kgverify.comparison.result import Divergence
from kgverify.comparison.step_view import StepReader, StepView
from kgverify.engines.sizes import Sizes
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.program.atoms import NamedAtom, Term, Variable, decode_variable, is_variable
from kgverify.program.outcomes import Origin
from kgverify.program.program import NamedRule
from kgverify.program.stages import STEP_STAGES, Stage
from kgverify.step.clauses import Clauses, is_named_variable, unify
from kgverify.testing.problems.problem import SHORTEST, PolicySpec, Problem
from kgverify.testing.shrinking.terms import rename_apart, rename_variables, substitute
from kgverify.trace.model.trace import Trace
from kgverify.verification.verify import Verification

PRECEDING: Final = (0, 64, 256, 1024)
"""The numbers of preceding facts of the selected atom's predicate to try with a slice: a cap counts them."""
NEIGHBOURS: Final = (2, 4, 8, 16, 32, 64)
"""The numbers of candidates around the one that differs to try together, if it does not differ alone."""
WIDE: Final = Sizes(match_window=1024, score_window=256)
"""The sizes of an engine for slices."""
START: Final = "start"
"""A predicate that leads to a goal in the middle of a derivation."""


@dataclass(frozen=True, eq=False)
class Touched:
    """The facts and rules of a graph that some steps of both engines touched.

    facts:    that made resolvents, or with which pruning deleted an atom; in file order
    matching: these and all others that a selected atom unifies with
    rules:    all whose heads have a selected atom's predicate
    goal:     of the last step, on the expected side; empty if there is no step
    """

    facts: tuple[NamedAtom, ...]
    matching: tuple[NamedAtom, ...]
    rules: tuple[NamedRule, ...]
    goal: tuple[NamedAtom, ...]


@dataclass(frozen=True, eq=False)
class Slicer:
    """Problems cut from a graph, on which a divergence of a verification may occur as well."""

    verification: Verification
    graph: KnowledgeGraph
    policy: PolicySpec = SHORTEST

    def slices(self, divergence: Divergence) -> Iterator[list[Problem]]:
        """Yield problems in rounds, the smallest first; those of a round are tried together."""
        if divergence.stage in (Stage.CORRUPT, Stage.RANK, Stage.METRIC):
            yield from self._cut_ranking(divergence)
            return
        if divergence.stage in STEP_STAGES:
            yield from self._cut_step(divergence)
        yield from self._cut_neighbours(divergence)

    def touched(self, divergence: Divergence) -> tuple[NamedAtom, ...]:
        """Return the facts that made resolvents, or deleted atoms, before a divergence of a step."""
        last = divergence.step if divergence.step >= 0 else None
        return self._touched([divergence.candidate], last).facts

    def _cut_step(self, divergence: Divergence) -> Iterator[list[Problem]]:
        row, last = divergence.candidate, divergence.step if divergence.step >= 0 else None
        way = self._touched([row], last)
        query = self._candidate(row)
        starts: list[tuple[Touched, tuple[NamedAtom, ...], tuple[NamedRule, ...]]] = [(way, (query,), ())]
        if way.goal:
            here = self._touched([row], last, only_last=True)
            # From the goal of the divergent step on, which is a query, or the body of a rule.
            starts.insert(0, (here, tuple(rename_variables([way.goal[0]])), ()))
            constant = next((t for a in (query, *way.goal) for t in a[1:] if isinstance(t, str)), "a")
            into = NamedRule(NamedAtom(START, constant, constant), way.goal)
            starts.insert(1, (here, (into.clause_head,), (into,)))
        predicate = way.goal[0].predicate if way.goal else query.predicate
        for num in PRECEDING:
            yield [
                self._problem(self._after(num, predicate, facts), (*rules, *touched.rules), unranked)
                for touched, unranked, rules in starts
                for facts in dict.fromkeys((touched.facts, touched.matching))
            ]
        of_predicates = {atom.predicate for touched, *_ in starts for atom in touched.matching} | {predicate}
        facts = tuple(fact for fact in self.graph.train if fact.predicate in of_predicates)
        yield [self._problem(facts, (*rules, *touched.rules), unranked) for touched, unranked, rules in starts]
        yield [self._problem(self.graph.train, self.graph.rules, (query,))]

    def _cut_neighbours(self, divergence: Divergence) -> Iterator[list[Problem]]:
        """Yield candidates in batches: some before the one that differs and some after it."""
        row, num = divergence.candidate, len(self.verification.expected.columns.candidates.num_steps)
        for count in (*(n for n in NEIGHBOURS if n < num), num):
            first = max(0, min(row + 1 - count // 2, num - count))
            rows = list(range(first, min(first + count, num)))
            touched = self._touched(rows, None)
            queries = tuple(self._candidate(each) for each in rows)
            slots = dict.fromkeys((2, self.verification.actual.header.engine.layout.get("slots", 2)))
            yield [
                replace(
                    self._problem(touched.matching, touched.rules, queries),
                    sizes=WIDE._replace(slots=n, pool=max(32, count)),
                )
                for n in slots
            ]

    def _cut_ranking(self, divergence: Divergence) -> Iterator[list[Problem]]:
        expected, run = self.verification.expected, self.verification.report.run
        rows = np.flatnonzero(expected.columns.candidates.query == divergence.query).tolist()
        query = self.graph.queries(run.split)[divergence.query]
        triple = self._decode(expected, query.tolist())
        known = [
            fact
            for fact in (*self.graph.train, *self.graph.valid, *self.graph.test)
            if fact.predicate == triple.predicate and (fact.first == triple.first or fact.second == triple.second)
        ]
        touched = self._touched(rows, None)
        seen = [str(t) for row in rows for t in self._candidate(row)[1:]]
        for facts in ((), touched.facts, touched.matching):
            ordered = tuple(fact for fact in dict.fromkeys((*known, *facts)) if fact != triple)
            problem = self._problem(ordered, touched.rules if facts else (), (), (triple,))
            fewer = dict.fromkeys((1, 2, run.num_corruptions))
            for constants in (seen, self.graph.program.symbols.constants):
                yield [replace(problem, num_corruptions=n, constants=tuple(dict.fromkeys(constants))) for n in fewer]

    def _problem(
        self,
        facts: Sequence[NamedAtom],
        rules: Sequence[NamedRule],
        unranked: tuple[NamedAtom, ...],
        queries: tuple[NamedAtom, ...] = (),
    ) -> Problem:
        return Problem(
            facts=tuple(facts),
            rules=tuple(replace(rule, name="", confidence=None) for rule in rules),
            queries=queries,
            unranked=unranked,
            limits=self.verification.report.limits.with_defaults(),
            policy=self.policy,
            num_corruptions=0,
            seed=self.verification.report.run.seed,
            sizes=WIDE,
        )

    def _after(self, num: int, predicate: str, facts: tuple[NamedAtom, ...]) -> tuple[NamedAtom, ...]:
        """Return the facts after `num` others of the predicate."""
        if not num:
            return facts
        known = set(facts)
        others = [fact for fact in self._facts if fact.predicate == predicate and fact not in known]
        return (*others[:num], *facts)

    def _touched(self, rows: Iterable[int], last: int | None, *, only_last: bool = False) -> Touched:
        facts: set[NamedAtom] = set()
        matching: set[NamedAtom] = set()
        predicates: set[str] = set()
        goal: tuple[NamedAtom, ...] = ()
        for trace, row in self._rows_of(rows):
            views = self._steps(trace, row, last)
            for view in views[-1:] if only_last else views:
                goal = tuple(self._decode(trace, atom) for atom in view.goal)
                if not goal:
                    continue
                predicates.add(goal[0].predicate)
                made, all_facts = self._find_touched(trace, view, rename_apart(goal))
                facts |= made
                matching |= made | all_facts
        expected_views = self._steps(self.verification.expected, next(iter(rows)), last)
        if expected_views:
            goal = tuple(self._decode(self.verification.expected, atom) for atom in expected_views[-1].goal)
        return Touched(
            facts=self._in_order(facts),
            matching=self._in_order(matching),
            rules=tuple(rule for rule in self.graph.rules if rule.clause_head.predicate in predicates),
            goal=goal,
        )

    def _find_touched(
        self, trace: Trace, view: StepView, goal: Sequence[NamedAtom]
    ) -> tuple[set[NamedAtom], set[NamedAtom]]:
        """Return the facts that a step touched, and those that its selected atom unifies with."""
        selected, rest = goal[0], goal[1:]
        origins = {self._facts[each.origin] for each in view.resolvents if each.origin_kind == Origin.FACT}
        matching = {
            self._facts[row] for row in self._clauses.facts_like(self.graph.program.symbols.encode(selected), None)
        }
        bodies: list[tuple[NamedAtom, tuple[NamedAtom, ...]]] = [(fact, ()) for fact in matching]
        bodies += [(rule.clause_head, rule.body) for rule in self.graph.rules]
        pruned = set()
        for head, body in bodies:
            if (bindings := unify(head, selected, is_named_variable)) is not None:
                resolvent = (substitute(atom, bindings) for atom in (*body, *rest))
                pruned |= {atom for atom in resolvent if atom in self._known}
        return origins | pruned, matching

    @cached_property
    def _clauses(self) -> Clauses:
        return Clauses(self.graph.program, exclude_query=False)

    def _rows_of(self, rows: Iterable[int]) -> Iterator[tuple[Trace, int]]:
        for row in rows:
            yield self.verification.expected, row
            other = self._actual_rows.get(self._key(self.verification.expected, row))
            if other is not None:
                yield self.verification.actual, other

    def _steps(self, trace: Trace, row: int, last: int | None) -> list[StepView]:
        reader = self._readers[trace is self.verification.actual]
        first = reader.first_step[row]
        num = reader.first_step[row + 1] - first
        return [reader.read(first + i) for i in range(num if last is None else min(last + 1, num))]

    def _candidate(self, row: int) -> NamedAtom:
        expected = self.verification.expected
        return self._decode(expected, expected.columns.candidates.atom[row].tolist())

    def _decode(self, trace: Trace, atom: Sequence[int]) -> NamedAtom:
        def term(each: int) -> Term:
            return Variable(f"X{decode_variable(each)}") if is_variable(each) else trace.symbols.constants[each]

        return NamedAtom(trace.symbols.predicates[atom[0]], term(atom[1]), term(atom[2]))

    def _in_order(self, facts: set[NamedAtom]) -> tuple[NamedAtom, ...]:
        return tuple(fact for fact in dict.fromkeys(self.graph.train) if fact in facts)

    def _key(self, trace: Trace, row: int) -> tuple[int, int, tuple[int, ...]]:
        each = trace.columns.candidates
        return int(each.query[row]), int(each.side[row]), tuple(each.atom[row].tolist())

    @cached_property
    def _actual_rows(self) -> dict[tuple[int, int, tuple[int, ...]], int]:
        actual = self.verification.actual
        num = len(actual.columns.candidates.num_steps)
        return {self._key(actual, row): row for row in range(num - 1, -1, -1)}

    @cached_property
    def _readers(self) -> tuple[StepReader, StepReader]:
        return StepReader(self.verification.expected.columns), StepReader(self.verification.actual.columns)

    @cached_property
    def _facts(self) -> list[NamedAtom]:
        """The facts in the order of the program."""
        return [self._decode(self.verification.expected, row) for row in self.graph.program.facts.tolist()]

    @cached_property
    def _known(self) -> frozenset[NamedAtom]:
        return frozenset(self.graph.train)
