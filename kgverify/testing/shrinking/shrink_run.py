"""Shrink a divergence of a run on a real graph: first cut the graph to a proof slice, then shrink the slice."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np

from kgverify.comparison.result import Divergence
from kgverify.comparison.step_view import StepReader, StepView
from kgverify.engines.plain.choice import PLAIN as PLAIN_MODE
from kgverify.engines.protocol import Sizes
from kgverify.engines.table import COMPILED
from kgverify.errors import UserError, count_of
from kgverify.escaping import ShownAsText, make_visible
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.graphs.vocabulary import NO_VOCABULARY, Vocabulary
from kgverify.program.atoms import NamedAtom
from kgverify.program.outcomes import SEARCH_STAGES, STEP_STAGES, Origin, Stage
from kgverify.program.program import NamedRule
from kgverify.report.report import Report
from kgverify.runs.engine_makers import EAGER, PLAIN, EngineSpec, Sides
from kgverify.runs.job import choose_reference, load_run_graph, read_job, write_down
from kgverify.step.clauses import Clauses
from kgverify.testing.checking.check import Checker
from kgverify.testing.checking.failure import Signature, describe_refusals, fails_same_way, list_forms, sign
from kgverify.testing.problems.problem import (
    SHORTEST,
    PolicySpec,
    Problem,
    rename_variables,
)
from kgverify.testing.reproducers.text_format import Reproducer, make_reproducer, saving_bugs, write_reproducer
from kgverify.testing.shrinking.shrink import Budget, Oracle, OutOfBudget, Shrunk, shrink_with
from kgverify.trace.model.header import EngineInfo
from kgverify.trace.model.trace import Trace
from kgverify.verification.verify import Verification

PRECEDING: Final = (0, 64, 256, 1024)
"""The numbers of preceding facts of the selected atom's predicate to add to a slice, since a cap counts them."""
MANY: Final = 256
"""The number of facts from everywhere in the graph to add to a slice."""
NEIGHBOURS: Final = (2, 4, 8, 16, 32, 64)
"""The numbers of neighbouring candidates to try together with a differing candidate that does not differ alone."""
WIDE: Final = Sizes(match_window=1024, score_window=256)
"""The sizes of an engine for slices."""
MAX_FOUND: Final = 6
"""The largest number of facts found one by one, in addition to the facts that a derivation touched."""
START: Final = "start"
"""A predicate that leads to a goal in the middle of a derivation."""


@dataclass(frozen=True, eq=False)
class Touched:
    """The facts and rules of a graph that some steps of both engines touched.

    facts:    the facts that made resolvents, or with which pruning deleted an atom; in file order
    matching: all facts that a selected atom unifies with, including these
    rules:    all rules whose heads have a selected atom's predicate
    goal:     the goal of the last step on the expected side; empty if there is no step
    """

    facts: tuple[NamedAtom, ...]
    matching: tuple[NamedAtom, ...]
    rules: tuple[NamedRule, ...]
    goal: tuple[NamedAtom, ...]


@dataclass(frozen=True, eq=False)
class Slicer:
    """Problems cut from a graph, which may show a divergence of a verification as well."""

    verification: Verification
    graph: KnowledgeGraph
    policy: PolicySpec = SHORTEST
    vocabulary: Vocabulary = NO_VOCABULARY

    def slices(self, divergence: Divergence) -> Iterator[list[Problem]]:
        """Yield problems in rounds, the smallest first. The problems of a round are tried together."""
        if divergence.stage in (Stage.CORRUPT, Stage.RANK, Stage.METRIC):
            yield from self._cut_ranking(divergence)
            return
        if divergence.stage in (*STEP_STAGES, *SEARCH_STAGES):
            yield from self._cut_step(divergence)
        yield from self._cut_neighbours(divergence)

    def touched(self, divergence: Divergence) -> tuple[NamedAtom, ...]:
        """Return the facts that made resolvents, or deleted atoms, before a divergence of a step."""
        return self._touched([divergence.candidate], _find_last(divergence)).facts

    def _cut_step(self, divergence: Divergence) -> Iterator[list[Problem]]:
        row, last = divergence.candidate, _find_last(divergence)
        way, query = self._touched([row], last), self._candidate(row)
        # The starts: the touched facts and rules, the query, and the rules that lead from it.
        starts: list[tuple[Touched, NamedAtom, tuple[NamedRule, ...]]] = [(way, query, way.rules)]
        if way.goal and divergence.stage in STEP_STAGES:
            here = self._touched([row], last, only_last=True)
            # Start at the goal of the divergent step, as a query or as the body of a rule.
            constant = next((t for a in (query, *way.goal) for t in a[1:] if isinstance(t, str)), "a")
            into = NamedRule(NamedAtom(START, constant, constant), way.goal)
            starts.insert(0, (here, rename_variables([way.goal[0]])[0], here.rules))
            if not self.vocabulary.is_closed:
                starts.insert(1, (here, into.clause_head, (into, *here.rules)))
        predicate = way.goal[0].predicate if way.goal else query.predicate
        surroundings: list[Callable[[tuple[NamedAtom, ...]], tuple[NamedAtom, ...]]]
        surroundings = [partial(self._after, num, predicate) for num in PRECEDING]
        surroundings.insert(1, self._among)
        for surround in surroundings:
            yield [
                self._problem(surround(facts), rules, (unranked,))
                for touched, unranked, rules in starts
                for facts in dict.fromkeys((touched.facts, touched.matching))
            ]
        of_predicates = {atom.predicate for touched, *_ in starts for atom in touched.matching} | {predicate}
        facts = tuple(fact for fact in self.graph.train if fact.predicate in of_predicates)
        yield [self._problem(facts, rules, (unranked,)) for _, unranked, rules in starts]
        yield [self._problem(self.graph.train, self.graph.rules, (query,))]

    def _cut_neighbours(self, divergence: Divergence) -> Iterator[list[Problem]]:
        """Yield batches of candidates: some before the differing one and some after it."""
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
        # The facts that no candidate matched may fill the tables of the batch.
        yield [self._problem(self.graph.train, self.graph.rules, queries)]

    def _cut_ranking(self, divergence: Divergence) -> Iterator[list[Problem]]:
        expected, run = self.verification.expected, self.verification.report.run
        rows = np.flatnonzero(expected.columns.candidates.query == divergence.query).tolist()
        query = self.graph.queries(run.split)[divergence.query]
        triple = self.graph.program.symbols.decode(query.tolist())
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
            vocabulary=self.vocabulary,
        )

    def _after(self, num: int, predicate: str, facts: tuple[NamedAtom, ...]) -> tuple[NamedAtom, ...]:
        """Return the facts after `num` others of the predicate."""
        known = set(facts)
        others = (fact for fact in self._facts if fact.predicate == predicate and fact not in known)
        return (*islice(others, num), *facts)

    def _among(self, facts: tuple[NamedAtom, ...]) -> tuple[NamedAtom, ...]:
        """Return the facts among others from everywhere in the graph, which fill tables and their order."""
        known = set(facts)
        others = self._facts[:: max(1, len(self._facts) // MANY)]
        return (*(fact for fact in others if fact not in known), *facts)

    def _touched(self, rows: Sequence[int], last: int | None, *, only_last: bool = False) -> Touched:
        """Return the clauses that the steps of candidates touched, up to a step; with `only_last`, in that step only."""
        program, clauses = self.graph.program, self._clauses
        facts: set[int] = set()
        matching: set[int] = set()
        predicates: set[int] = set()
        for steps in (steps for row in rows for steps in self._both_steps(row, last)):
            for view in steps[-1:] if only_last else steps:
                if not (goal := view.goal):
                    continue
                predicates.add(goal[0][0])
                fitting = clauses.facts_like(goal[0], None)
                made = [(Origin.FACT, i) for i in fitting] + [(Origin.RULE, i) for i in clauses.rules_of(goal[0][0])]
                atoms = {atom for clause in made for atom in clauses.resolve(goal, *clause) or ()}
                facts |= {clauses.fact_index[atom] for atom in atoms if atom in clauses.fact_index}
                facts |= {each.origin for each in view.resolvents if each.origin_kind == Origin.FACT}
                matching |= {*facts, *fitting}
        views = self._sides[0].read(rows[0], last)
        heads = {program.symbols.predicates[predicate] for predicate in predicates}
        return Touched(
            facts=self._in_order(facts),
            matching=self._in_order(matching),
            rules=tuple(rule for rule in self.graph.rules if rule.clause_head.predicate in heads),
            goal=tuple(map(program.symbols.decode, views[-1].goal)) if views else (),
        )

    @cached_property
    def _clauses(self) -> Clauses:
        return Clauses(self.graph.program, exclude_query=False)

    def _both_steps(self, row: int, last: int | None) -> Iterator[list[StepView]]:
        """Yield the steps of a candidate up to `last` on the expected side, and on the actual side if it has the candidate."""
        (expected, actual), key = self._sides, self._sides[0].keys[row]
        yield expected.read(row, last)
        if key in actual.rows:
            yield actual.read(actual.rows[key], last)

    def _candidate(self, row: int) -> NamedAtom:
        return self.graph.program.symbols.decode(self.verification.expected.columns.candidates.atom[row].tolist())

    def _in_order(self, facts: set[int]) -> tuple[NamedAtom, ...]:
        named = {self._facts[i] for i in facts}
        return tuple(fact for fact in dict.fromkeys(self.graph.train) if fact in named)

    @cached_property
    def _sides(self) -> "tuple[_Side, _Side]":
        return _Side(self.verification.expected), _Side(self.verification.actual)

    @cached_property
    def _facts(self) -> list[NamedAtom]:
        """The facts in the order of the program."""
        return list(map(self.graph.program.symbols.decode, self.graph.program.facts.tolist()))


def _find_last(divergence: Divergence) -> int | None:
    """Return the last step that matters; None if all do, as those of other paths in a search."""
    return divergence.step if divergence.step >= 0 and divergence.stage in STEP_STAGES else None


class _Side:
    """The steps of a trace by candidate.

    keys: the query, the side and the atom of each candidate
    rows: the row of the first candidate with each key
    """

    def __init__(self, trace: Trace) -> None:
        candidates = trace.columns.candidates
        self._reader = StepReader(trace.columns)
        columns = candidates.query.tolist(), candidates.side.tolist(), map(tuple, candidates.atom.tolist())
        self.keys = list(zip(*columns, strict=True))
        self.rows = {key: row for row, key in reversed([*enumerate(self.keys)])}

    def read(self, row: int, last: int | None) -> list[StepView]:
        """Return the steps of a candidate, up to step `last`."""
        first, end = self._reader.first_step[row : row + 2]
        return [self._reader.read(i) for i in range(first, end if last is None else min(first + last + 1, end))]


def find_needed(problem: Problem, touched: Iterable[NamedAtom], oracle: Oracle) -> Problem:
    """Return a problem with the facts that are likely to be needed, and few others, found by halving.

    If many others are needed, the result has more of them than necessary.
    """
    facts = tuple(dict.fromkeys(problem.facts))
    chosen = set(touched)
    rest = [fact for fact in facts if fact not in chosen]

    def keep(num: int) -> Problem:
        known = {*chosen, *rest[:num]}
        return replace(problem, facts=tuple(fact for fact in facts if fact in known))

    for _ in range(MAX_FOUND):
        if oracle.holds(keep(0)):
            return keep(0)
        if not rest:
            break
        needed = bisect_left(range(1, len(rest)), True, key=lambda num: oracle.holds(keep(num)))
        chosen.add(rest[needed])
        rest = rest[:needed]
    return keep(len(rest)) if oracle.holds(keep(len(rest))) else problem


RANDOM_POLICIES: Final = tuple(PolicySpec("two_tower", seed=seed) for seed in range(4))
"""The policies that replace a policy with weights, before `shortest`, since a problem has no weights of its own."""
MAX_RUN_CALLS: Final = 500
"""Default limit on the runs of the engine under test while a divergence on a graph is shrunk."""
RUN_BUDGET: Final = Budget(MAX_RUN_CALLS)
MOST_SHOWN: Final = 24
"""The largest number of lines of a problem that are printed; the reproducer has all of them."""


class NoSlice(UserError):
    """An error: no part of the graph was found that diverges like the run."""


@dataclass(frozen=True, kw_only=True, repr=False)
class ShrunkRun(ShownAsText):
    """The result of shrinking a divergence of a run.

    report:  the report of the run
    graph:   the graph of the run
    sliced:  the problem of the proof slice, with which the shrinker began
    engine:  the engine on which the divergence was shrunk; reference: the engine that it was compared with
    signature: the signature of the divergence in the run
    """

    shrunk: Shrunk
    sliced: Problem
    graph: KnowledgeGraph
    report: Report
    engine: EngineSpec = EAGER
    reference: EngineSpec = PLAIN
    signature: Signature

    @property
    def removed(self) -> float:
        """The share of the graph's facts that are not in the slice, 0 to 1."""
        return 1 - len(self.sliced.facts) / max(1, len(self.graph.train))

    @property
    def reproducer(self) -> Reproducer:
        """The reproducer of the minimal problem, with notes of the run."""
        report, problem, graph = self.report, self.shrunk.problem, self.graph
        notes = (
            f"the run was recorded as: {report.command}" if report.command else f"from a run on {report.run.graph}",
            f"{count_of(len(graph.train), 'fact')} and {count_of(len(graph.rules), 'rule')} cut to {len(self.sliced.facts):,} and"
            f" {len(self.sliced.rules):,} by the proof slice, then to {len(problem.facts):,} and"
            f" {len(problem.rules):,}; {count_of(self.shrunk.calls, 'run')} of the engine",
        )
        return make_reproducer(
            self.shrunk.failure,
            self.engine,
            reference=self.reference,
            lockstep=report.lockstep,
            neighbour=self.shrunk.change,
            notes=notes,
        )

    @property
    def agreeing(self) -> Reproducer | None:
        """The reproducer with one change, on which both sides agree; None if none is known."""
        if self.shrunk.neighbour is None:
            return None
        made = self.reproducer
        return Reproducer(
            problem=self.shrunk.neighbour.problem,
            signature=made.signature,
            lockstep=made.lockstep,
            engine=made.engine,
            reference=made.reference,
            versions=made.versions,
            notes=(f"both sides agree; they differ without one change: {self.shrunk.change}",),
        )

    @property
    def problem(self) -> Problem:
        """The minimal problem."""
        return self.shrunk.problem

    def save(self, path: str | Path) -> Path:
        """Write the reproducer, and return its path. UserError if it cannot be written."""
        write_reproducer(self.reproducer, Path(path))
        return Path(path)

    def save_pair(self, path: str | Path) -> tuple[Path, ...]:
        """Write the reproducer, and beside it the agreeing one, if it is known. Return both paths."""
        written = [self.save(path)]
        if self.agreeing is not None:
            written.append(written[0].with_name(f"{written[0].stem}.agrees{written[0].suffix}"))
            write_reproducer(self.agreeing, written[1])
        return tuple(written)

    def __str__(self) -> str:
        """Return the signature, the sizes before and after, and the problem."""
        shrunk, minimum, graph, sliced = self.shrunk, self.problem, self.graph, self.sliced
        is_other = self.engine.name == COMPILED and self.engine != find_engines(self.report)[-1]
        against = "" if self.reference == PLAIN else f", compared with {self.reference}"
        lines = [
            f"{self.signature}   on {self.engine}{against}" + (", where it occurs as well" if is_other else ""),
            f"   graph      {count_of(len(graph.train), 'fact')}, {count_of(len(graph.rules), 'rule')}",
            f"   slice      {count_of(len(sliced.facts), 'fact')}, {count_of(len(sliced.rules), 'rule')}"
            f"   ({self.removed:.1%} of the facts removed)",
            f"   minimum    {count_of(len(minimum.facts), 'fact')}, {count_of(len(minimum.rules), 'rule')},"
            f" {count_of(len(minimum.queries) + len(minimum.unranked), 'query')}"
            f"   in {count_of(shrunk.calls, 'run')}, {shrunk.seconds:.1f} s"
            + ("" if shrunk.is_finished else ", the smallest found before --max-calls or --seconds ran out"),
        ]
        if not fails_same_way(shrunk.failure.signature, self.signature):
            stages = f"{self.signature.stage} in the run, {shrunk.failure.signature.stage} here"
            lines.append(f"   differs    {stages}: the lost fact loses the proof")
        if minimum.vocabulary:
            lines.append(f"   {'needs' if shrunk.needs_vocabulary else 'has':<10} {minimum.vocabulary}")
        if refused := describe_refusals(Counter(shrunk.refusals), len(shrunk.refusals), shrunk.num_judged):
            lines.append(f"   skipped    {refused}")
        lines.append("")
        program = str(minimum).splitlines()
        if len(program) > MOST_SHOWN:
            hidden = len(program) - MOST_SHOWN
            program = [*program[: MOST_SHOWN // 2], f"... {hidden} lines", *program[-MOST_SHOWN // 2 :]]
        lines += [f"   {line}" for line in program]
        if shrunk.change:
            lines += ["", f"both sides agree with one change: {shrunk.change}"]
        return "\n".join(map(make_visible, lines))


@saving_bugs()
def shrink_run(
    verification: Verification,
    divergence: int = 1,
    budget: Budget = RUN_BUDGET,
    *,
    engine: EngineSpec | None = None,
    reference: EngineSpec | None = None,
    graph: KnowledgeGraph | None = None,
) -> ShrunkRun:
    """Shrink a divergence of a verification to a minimal problem.

    divergence: the number of the divergence in the report, from 1
    engine:     the engine under test; by default the run's own, eager on the CPU if the divergence occurs there, too
    reference:  the engine for comparison; by default the run's own
    graph:      by default the run's graph, loaded again

    UserError if there is no such divergence, the graph or the engine cannot be found again, the graph has changed, or no
    part of the graph diverges in the same way.
    """
    report = verification.report
    engines = [engine] if engine is not None else find_engines(report)
    if reference is None:
        named = write_down(choose_reference(read_job(report).engines.reference))
        reference = _without_compilation(_require_name(named, report.environment.expected, "--reference"))
    loaded = load_run_graph(report) if graph is None else graph
    while True:
        spec, *engines = engines
        checker = Checker(*Sides(spec, reference).find_makers(), report.lockstep)
        try:
            found = shrink_divergence(verification, loaded, checker, divergence, budget)
            return replace(found, engine=spec, reference=reference)
        except NoSlice:
            if not engines:
                raise


def shrink_divergence(
    verification: Verification,
    graph: KnowledgeGraph,
    checker: Checker,
    number: int = 1,
    budget: Budget = RUN_BUDGET,
) -> ShrunkRun:
    """Shrink a divergence of a verification on the engines of a checker; otherwise like `shrink_run`."""
    report = verification.report
    num = len(report.divergences)
    if not 1 <= number <= num:
        raise UserError(
            f"there is no divergence {number}: the run has {num}",
            where="divergence",
            fix=f"give 1 to {num}" if num else "shrink a run that diverges",
        )
    if graph.program.sha256 != verification.expected.header.program_sha256:
        raise UserError(
            "holds other facts or rules than the run had",
            where=f"graph {graph.name}",
            fix="run `kgverify diff --save` again, and shrink that run",
        )
    signature = sign(report, report.divergences[number - 1])
    oracle = Oracle(checker, signature, budget, list_forms(signature))
    sliced = _find_slice(verification, graph, number, oracle)
    budget.progress("slice", sliced, oracle.calls)
    failure = oracle.judge(sliced)
    assert failure is not None
    shrunk = shrink_with(oracle, failure)
    return ShrunkRun(shrunk=shrunk, sliced=sliced, graph=graph, report=report, signature=signature.held)


def find_engines(report: Report) -> list[EngineSpec]:
    """Return the ways to run the engine of a saved run, the fastest first. UserError if kgverify cannot make it."""
    recorded = _require_name(write_down(read_job(report).engines.engine), report.environment.actual, "--engine")
    if recorded.name != COMPILED:
        return [recorded]
    return list(dict.fromkeys((_without_compilation(recorded), recorded)))


def _without_compilation(spec: EngineSpec) -> EngineSpec:
    is_compiled = spec.name == COMPILED and spec.mode != PLAIN_MODE
    return replace(spec, mode=EAGER.mode, device=EAGER.device) if is_compiled else spec


def _require_name(spec: EngineSpec, info: EngineInfo, option: str) -> EngineSpec:
    """Return a specification. UserError if it has no name, so that the engine cannot be made again."""
    if not spec.name:
        raise UserError(
            f"kgverify cannot make the engine {info.name!r} again",
            where="the run's engine",
            fix=f"give {option} MODULE:FUNCTION, a function of (program, limits, policy) that returns it",
        )
    return spec


def _find_slice(verification: Verification, graph: KnowledgeGraph, number: int, oracle: Oracle) -> Problem:
    report = verification.report
    divergence = report.divergences[number - 1]
    is_plain = report.policy.name == SHORTEST.name
    policies = (SHORTEST,) if is_plain else (*RANDOM_POLICIES, SHORTEST)
    # Few symbols are tried first, then all of the graph, with their ids.
    whole = Vocabulary.of(graph)
    slicers = [Slicer(verification, graph, policy, ids) for ids in (NO_VOCABULARY, whole) for policy in policies]
    refusing: set[int] = set()
    try:
        for attempts in zip(*(slicer.slices(divergence) for slicer in slicers), strict=True):
            for i, of_slicer in enumerate(attempts):
                if i in refusing:
                    continue
                if (found := oracle.first(of_slicer, None)) is None:
                    refusing |= {i} if all(map(oracle.has_refused, of_slicer)) else set()
                    continue
                has_start = any(rule.clause_head.predicate == START for rule in found.rules)
                known = replace(whole, is_closed=False, graph=None) if has_start else whole
                kept = replace(found, vocabulary=known)
                if len(found.facts) < len(graph.train) or not oracle.holds(kept):
                    kept = found
                return find_needed(kept, slicers[i].touched(divergence), oracle) if len(kept.facts) > MANY else kept
    except OutOfBudget:
        if oracle.smallest is not None:
            return oracle.smallest
    refused = describe_refusals(Counter(oracle.refusals), len(oracle.refusals), oracle.num_judged)
    raise NoSlice(
        f"no part of the graph was found that diverges in the same way ({oracle.signature}) in {count_of(oracle.calls, 'run')}"
        + (f"; {refused}" if refused else ""),
        where=f"divergence {number}",
        fix="choose another divergence of the same cause, or allow more --seconds"
        + ("" if is_plain else "; it may take the weights of the run's policy, which a problem cannot have"),
    )
