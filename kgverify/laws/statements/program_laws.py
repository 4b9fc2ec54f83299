"""Laws of the program: changing names, orders, repeated facts and unreachable clauses has only the stated effects."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.step_view import ResolventView, StepView
from kgverify.engines.policy import Policy
from kgverify.engines.protocol import Engine
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.laws.case import Case, Finding, read_steps
from kgverify.laws.law import law
from kgverify.laws.presumptions import COUNTS_EVERY_STEP, FORGETS_NAMES, OUR_FILTERS, REJECTS
from kgverify.laws.statements.compare_runs import difference_of_counts, difference_of_resolvents, differing
from kgverify.program.atoms import NamedAtom, Term, Variable
from kgverify.program.outcomes import GoalKind, Origin
from kgverify.program.program import NamedRule, Program
from kgverify.program.stages import Stage
from kgverify.testing.problems.problem import free_prefix
from kgverify.trace.model.columns import Columns

FOREIGN = 1 << 30
"""The first id of clauses and symbols that only the variant has."""


@dataclass(frozen=True, eq=False)
class Variant:
    """A variant of a case's program.

    rule_of: for each rule of the variant the rule of the case, or -1
    """

    case: Case
    facts: Sequence[NamedAtom]
    rules: Sequence[NamedRule]
    rule_of: Sequence[int]

    @cached_property
    def graph(self) -> KnowledgeGraph:
        """The variant, with the queries and the constants of the case."""
        return replace(self.case.run.graph, train=tuple(self.facts), rules=tuple(self.rules))

    def prove(self) -> Columns:
        """Prove the candidates of the case on the variant, and return the results in the ids of the case."""
        candidates = self.case.candidates
        return self._back_columns(self._make_engine().prove(candidates._replace(atom=self._there(candidates.atom))))

    def steps(self) -> list[StepView]:
        """Take the steps of the case on the variant, and return them in the ids of the case."""
        positions = self.case.positions
        candidates = positions.candidates._replace(atom=self._there(positions.candidates.atom))
        there = positions._replace(candidates=candidates, atoms=self._there(positions.atoms))
        return read_steps(self._back_columns(self._make_engine().step(there)))

    def _make_engine(self) -> Engine:
        run = replace(self.case.run, graph=self.graph, policy=self._policy)
        return self.case.make_pipeline(run, self.case.sizes).engine

    def _back_columns(self, columns: Columns) -> Columns:
        """Return columns in the ids of the case; clauses and symbols of the variant alone are `FOREIGN` or more."""
        resolvents = columns.resolvents
        rule_of = np.array([i if i >= 0 else FOREIGN + at for at, i in enumerate(self.rule_of)], np.int32)
        of_rule, of_fact = (
            np.append(ids, 0)[np.minimum(resolvents.origin, len(ids))] for ids in (rule_of, self._fact_of)
        )
        kinds = [resolvents.origin_kind == kind for kind in (Origin.RULE, Origin.FACT)]
        origin = np.select(kinds, [of_rule, of_fact], resolvents.origin).astype(np.int32)
        return Columns(
            columns.candidates._replace(atom=self._back(columns.candidates.atom)),
            columns.steps._replace(goal_atoms=self._back(columns.steps.goal_atoms)),
            resolvents._replace(origin=origin, atoms=self._back(resolvents.atoms)),
        )

    def _there(self, atoms: NDArray[np.int32]) -> NDArray[np.int32]:
        return _map_atoms(atoms, *self._maps(self.case.program, self.graph.program))

    def _back(self, atoms: NDArray[np.int32]) -> NDArray[np.int32]:
        return _map_atoms(atoms, *self._maps(self.graph.program, self.case.program))

    def _maps(self, source: Program, target: Program) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        predicates, constants = (
            np.array([ids.get(name, FOREIGN + i) for i, name in enumerate(names)] or [0], np.int32)
            for ids, names in (
                (target.symbols.predicate_ids, source.symbols.predicates),
                (target.symbols.constant_ids, source.symbols.constants),
            )
        )
        return predicates, constants

    @cached_property
    def _fact_of(self) -> NDArray[np.int32]:
        index = self.case.clauses.fact_index
        rows = self._back(self.graph.program.facts).tolist()
        return np.array([index.get((p, a, b), FOREIGN + i) for i, (p, a, b) in enumerate(rows)], np.int32)

    @property
    def _policy(self) -> Policy:
        """The policy, in which each symbol keeps its embedding; one that only the variant has gets zeros."""
        policy = self.case.run.policy
        if not policy.weights:
            return policy
        weights = dict(policy.weights)
        maps = self._maps(self.graph.program, self.case.program)
        for name, rows in zip(("embedding.predicate", "embedding.constant"), maps, strict=True):
            table = np.asarray(weights[name])
            is_known = rows < FOREIGN
            weights[name] = np.where(is_known[:, None], table[np.where(is_known, rows, 0)], 0).astype(table.dtype)
        return Policy(policy.name, weights)


def _map_atoms(
    atoms: NDArray[np.int32], predicates: NDArray[np.int32], constants: NDArray[np.int32]
) -> NDArray[np.int32]:
    mapped = atoms.copy()
    mapped[:, 0] = predicates[atoms[:, 0]]
    arguments = atoms[:, 1:]
    mapped[:, 1:] = np.where(arguments < 0, arguments, constants[np.maximum(arguments, 0)])
    return mapped


CROWD = 56
"""Facts that crowd a predicate: more than any plausible cap."""
CROWD_RULES = 4


@law("Predicates and constants under other names, in the same order, have the same derivations.", presumes=None)
def _renaming(case: Case) -> Iterator[Finding]:
    graph = case.run.graph

    def other(name: str) -> str:
        return f"{name[::-1]} 'é/2'"

    def term(each: Term) -> Term:
        return each if isinstance(each, Variable) else other(each)

    def atom(each: NamedAtom) -> NamedAtom:
        return NamedAtom(other(each.predicate), term(each.first), term(each.second))

    renamed_graph = replace(
        graph,
        train=tuple(map(atom, graph.train)),
        valid=tuple(map(atom, graph.valid)),
        test=tuple(map(atom, graph.test)),
        rules=tuple(NamedRule(atom(rule.clause_head), tuple(map(atom, rule.body))) for rule in graph.rules),
        domains={name: tuple(map(other, constants)) for name, constants in graph.domains.items()},
    )
    engine = case.make_pipeline(replace(case.run, graph=renamed_graph), case.sizes).engine
    yield from differing(case, engine.prove(case.candidates), Stage.RECYCLE)


@law("A fact given twice is one fact.")
def _repeated_facts(case: Case) -> Iterator[Finding]:
    train, rules = case.run.graph.train, case.run.graph.rules
    variant = Variant(case, (*train, *train[::2]), rules, range(len(rules)))
    return differing(case, variant.prove(), Stage.MATCH_FACTS)


@law("Facts and rules of predicates that no goal can reach change no derivation, though all ids move.")
def _irrelevant_clauses(case: Case) -> Iterator[Finding]:
    train, rules = case.run.graph.train, case.run.graph.rules
    symbols = case.program.symbols
    far = free_prefix("far", (*symbols.predicates, *symbols.constants), "~")
    islands = [f"{far} island {i}" for i in range(20)]
    facts = [NamedAtom(far, islands[i], islands[i // 2]) for i in range(len(islands))]
    x, y = Variable("X"), Variable("Y")
    near = (train[0] if train else rules[0].clause_head if rules else case.run.graph.test[0]).predicate
    further = (
        NamedRule(NamedAtom(f"{far} away", x, y), (NamedAtom(near, x, y), NamedAtom(far, y, x))),
        NamedRule(NamedAtom(far, x, y), (NamedAtom(f"{far} away", y, x),)),
    )
    variant = Variant(case, (*facts, *train), (*rules, *further), [*range(len(rules)), -1, -1])
    return differing(case, variant.prove(), Stage.RECYCLE)


@law(
    "Facts and rules over constants that occur nowhere else change no step whose selected atom has a constant or the same"
    f" variable twice, though {CROWD} such facts and {CROWD_RULES} such rules stand before all others.",
    # Whether a step counts depends on the steps before it, whose selected atoms may have neither.
    presumes=(COUNTS_EVERY_STEP,),
)
def _crowded_predicate(case: Case) -> Iterator[Finding]:
    graph = case.run.graph
    crowd = free_prefix("crowd", case.program.symbols.constants, "~")
    # One predicate of each problem at a time, which is faster.
    predicates = _one_of_each(case)
    facts = [NamedAtom(p, f"{crowd} {i}", f"{crowd} {i + 1}") for p in predicates for i in range(CROWD)]
    rules = [
        NamedRule(head, (head,))
        for p in predicates
        for head in (NamedAtom(p, f"{crowd} {i}", f"{crowd} {i + 1}") for i in range(CROWD_RULES))
    ]
    rule_of = [*[-1] * len(rules), *range(len(graph.rules))]
    variant = Variant(case, (*facts, *graph.train), (*rules, *graph.rules), rule_of)
    stepped = variant.steps()
    for row in range(len(case.owner)):
        one, other = case.steps[row], stepped[row]
        if not one.goal or (max(one.goal[0][1:]) < 0 and one.goal[0][1] != one.goal[0][2]):
            continue
        found = difference_of_resolvents(one.resolvents, other.resolvents, case.names)
        if found is not None:
            yield case.of_step(row, Stage.MATCH_FACTS, *found)
        elif difference_of_counts(one, other):
            counts = [f"{each.dropped_atoms} and {each.dropped_resolvents}" for each in (one, other)]
            yield case.of_step(row, Stage.LIMIT, "dropped", *counts)


def _one_of_each(case: Case) -> list[str]:
    """Return, for each problem, the predicate with the most clauses."""
    graph = case.run.graph
    counts = Counter(fact.predicate for fact in graph.train)
    counts.update(rule.clause_head.predicate for rule in graph.rules)
    best: dict[int, str] = {}
    for predicate, _ in counts.most_common():
        best.setdefault(case.problem_of_name(predicate), predicate)
    return list(best.values())


@law(
    "Facts in another order, and so with other ids: from the same position the same resolvents, as a multiset, where nothing"
    " is dropped for its place; always as many, dropped ones included; TRUE if and only if TRUE.",
    presumes=(OUR_FILTERS, REJECTS, FORGETS_NAMES),
)
def _fact_order(case: Case) -> Iterator[Finding]:
    graph = case.run.graph
    return _reordered(Variant(case, graph.train[::-1], graph.rules, range(len(graph.rules))), Stage.MATCH_FACTS)


@law("Rules in another order: as for facts.", presumes=(OUR_FILTERS, REJECTS, FORGETS_NAMES))
def _rule_order(case: Case) -> Iterator[Finding]:
    graph = case.run.graph
    variant = Variant(case, graph.train, graph.rules[::-1], range(len(graph.rules))[::-1])
    return _reordered(variant, Stage.MATCH_RULES)


def _reordered(variant: Variant, stage: Stage) -> Iterator[Finding]:
    case = variant.case
    stepped = variant.steps()
    for row in range(len(case.owner)):
        found = _difference_but_for_order(case, case.steps[row], stepped[row])
        if found is not None:
            yield case.of_step(row, stage, *found)


def _difference_but_for_order(case: Case, one: StepView, other: StepView) -> tuple[str, str, str] | None:
    firsts = [each.resolvents[0] if each.resolvents else None for each in (one, other)]
    kinds = [each and each.kind for each in firsts]
    if GoalKind.TRUE in kinds:
        # Which of several proofs comes first depends on the order.
        texts = [case.names.goal(each.atoms, each.kind) if each else "nothing" for each in firsts]
        return None if kinds[0] == kinds[1] else ("resolvents", texts[0], texts[1])
    sums = [len(_goals(each)) + each.dropped_atoms + each.dropped_resolvents for each in (one, other)]
    if sums[0] != sums[1]:
        return "resolvents, dropped ones included", str(sums[0]), str(sums[1])
    if one.dropped_atoms != other.dropped_atoms:
        return "dropped_atoms", str(one.dropped_atoms), str(other.dropped_atoms)
    if one.dropped_resolvents or other.dropped_resolvents:
        return None
    left, right = (Counter((each.content, each.clause) for each in _goals(step)) for step in (one, other))
    if left == right:
        return None
    texts = []
    for step, missing in ((one, left - right), (other, right - left)):
        only = [each for each in _goals(step) if (each.content, each.clause) in missing]
        texts.append(case.names.resolvent(only[0]) if only else "nothing more")
    return "resolvents", texts[0], texts[1]


def _goals(step: StepView) -> list[ResolventView]:
    return [each for each in step.resolvents if each.kind == GoalKind.GOAL]
