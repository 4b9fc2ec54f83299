"""Laws of the program: changing names, orders, repeated facts and unreachable clauses has only the stated effects."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.comparable import Numbering
from kgverify.comparison.step_view import ResolventView, StepView, list_missing
from kgverify.engines.policy import Policy
from kgverify.engines.protocol import Engine
from kgverify.graphs.vocabulary import free_prefix
from kgverify.laws.case import Case, Finding, read_steps
from kgverify.laws.law import COUNTS_EVERY_STEP, FORGETS_NAMES, OUR_FILTERS, REJECTS, law
from kgverify.laws.statements.compare_runs import differing, differing_step
from kgverify.program.atoms import NamedAtom, Variable
from kgverify.program.outcomes import GoalKind, Origin, Stage
from kgverify.program.program import NamedRule, Symbols
from kgverify.runs.run import Run
from kgverify.trace.model.columns import Columns, empty_columns
from kgverify.trace.model.trace import Trace

FOREIGN = 1 << 30
"""The first number of rules that only the variant has."""


@dataclass(frozen=True, eq=False)
class Variant:
    """A variant of a case's program.

    rule_of: the rule of the case for each rule of the variant, or -1
    """

    case: Case
    facts: Sequence[NamedAtom]
    rules: Sequence[NamedRule]
    rule_of: Sequence[int]

    @cached_property
    def skeleton(self) -> Trace:
        """A trace without candidates, in the ids of the variant."""
        own: Any = self._run.graph.program
        parts = {name: getattr(own, name) for name in ("symbols", "facts", "fact_lines", "rules")}
        return replace(self.case.trace, columns=empty_columns(), **parts)

    def find_differing(self, stage: Stage) -> Iterator[Finding]:
        """Prove the candidates of the case on the variant, and yield the first difference of each derivation."""
        candidates = self.case.candidates
        columns = self._restore_rules(self._engine.prove(candidates._replace(atom=self._encode(candidates.atom))))
        return differing(self.case, columns, stage, skeleton=self.skeleton)

    def steps(self) -> list[StepView]:
        """Take the steps of the case on the variant, and return them in the ids of the case."""
        positions = self.case.positions
        candidates = positions.candidates._replace(atom=self._encode(positions.candidates.atom))
        there = positions._replace(candidates=candidates, atoms=self._encode(positions.atoms))
        stepped = self._restore_rules(self._engine.step(there))
        return read_steps(Numbering(self.case.trace, self.skeleton).convert_columns(1, stepped))

    def _restore_rules(self, columns: Columns) -> Columns:
        """Return columns with the rule numbers of the case; additional rules are numbered from `FOREIGN`."""
        rule_of = np.array([i if i >= 0 else FOREIGN + at for at, i in enumerate(self.rule_of)] or [0], np.int32)
        resolvents = columns.resolvents
        of_rule = rule_of[np.minimum(resolvents.origin, len(rule_of) - 1)]
        origin = np.where(resolvents.origin_kind == Origin.RULE, of_rule, resolvents.origin)
        return columns._replace(resolvents=resolvents._replace(origin=origin))

    @cached_property
    def _encode(self) -> Callable[[NDArray[np.int32]], NDArray[np.int32]]:
        """A function that converts atoms of the case to the ids of the variant."""
        return Numbering(self.skeleton, self.case.trace).converter(1) or (lambda atoms: atoms)

    @cached_property
    def _engine(self) -> Engine:
        return self.case.make_pipeline(self._run, self.case.merged.sizes).engine

    @cached_property
    def _run(self) -> Run:
        """The run of the variant. Each symbol keeps its embedding; a symbol that only the variant has gets zeros."""
        run = self.case.run
        graph = replace(run.graph, train=tuple(self.facts), rules=tuple(self.rules))
        weights, known, symbols = dict(run.policy.weights), self.case.program.symbols, graph.program.symbols
        for name, ids, names in (
            ("embedding.predicate", known.predicate_ids, symbols.predicates),
            ("embedding.constant", known.constant_ids, symbols.constants),
        ):
            if weights:
                table = np.asarray(weights[name])
                blank = np.zeros_like(table[:1])
                weights[name] = np.concatenate([table[ids[each], None] if each in ids else blank for each in names])
        return replace(run, graph=graph, policy=Policy(run.policy.name, weights) if weights else run.policy)


CROWD = 56
"""The number of facts that crowd a predicate: more than any plausible cap."""
CROWD_RULES = 4


@law("Predicates and constants under other names, in the same order, have the same derivations.", presumes=None)
def _renaming(case: Case) -> Iterator[Finding]:
    graph, symbols = case.run.graph, case.program.symbols
    first = graph.first_symbols.predicates, graph.first_symbols.constants

    def other(name: str) -> str:
        return f"{name[::-1]} 'é/2'"

    names: Any = {name: other(name) for name in (*symbols.predicates, *symbols.constants)}

    def rename(parts: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(each.rename(names, names) for each in parts)

    splits: dict[str, Any] = {name: rename(getattr(graph, name)) for name in ("train", "valid", "test")}
    renamed_graph = replace(
        graph,
        **splits,
        rules=rename(graph.rules),
        domains={name: tuple(map(other, constants)) for name, constants in graph.domains.items()},
        first_symbols=Symbols(*(tuple(map(other, each)) for each in first)),
    )
    yield from differing(case, case.vary(graph=renamed_graph).prove(case.candidates), Stage.RECYCLE)


@law("A fact given twice is one fact.")
def _repeated_facts(case: Case) -> Iterator[Finding]:
    train, rules = case.run.graph.train, case.run.graph.rules
    variant = Variant(case, (*train, *train[::2]), rules, range(len(rules)))
    return variant.find_differing(Stage.MATCH_FACTS)


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
    return variant.find_differing(Stage.RECYCLE)


@law(
    "Facts and rules over constants that occur nowhere else change no step whose selected atom has a constant or the same"
    f" variable twice, though {CROWD} such facts and {CROWD_RULES} such rules stand before all others.",
    # Whether a step counts depends on earlier steps, whose selected atoms may have neither.
    presumes=(COUNTS_EVERY_STEP,),
)
def _crowded_predicate(case: Case) -> Iterator[Finding]:
    graph = case.run.graph
    crowd = free_prefix("crowd", case.program.symbols.constants, "~")
    # One predicate of each problem at a time: this is faster.
    crowds = [[NamedAtom(p, f"{crowd} {i}", f"{crowd} {i + 1}") for i in range(CROWD)] for p in _one_of_each(case)]
    facts = [fact for each in crowds for fact in each]
    rules = [NamedRule(head, (head,)) for each in crowds for head in each[:CROWD_RULES]]
    rule_of = [*[-1] * len(rules), *range(len(graph.rules))]
    variant = Variant(case, (*facts, *graph.train), (*rules, *graph.rules), rule_of)
    for (at, one), other in zip(case.walk(), variant.steps(), strict=True):
        if one.goal and (max(one.goal[0][1:]) >= 0 or one.goal[0][1] == one.goal[0][2]):
            yield from differing_step(case, at, Stage.MATCH_FACTS, one, other)


def _one_of_each(case: Case) -> list[str]:
    """Return, for each problem, the predicate with the most clauses."""
    graph = case.run.graph
    counts = Counter(atom.predicate for atom in (*graph.train, *(rule.clause_head for rule in graph.rules)))
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
    for (at, one), other in zip(case.walk(), variant.steps(), strict=True):
        for field, expected, actual in _differences_but_for_order(case, one, other):
            yield Finding(*at, stage, field, expected, actual)


def _differences_but_for_order(case: Case, one: StepView, other: StepView) -> Iterator[tuple[str, object, object]]:
    firsts = [each.resolvents[0] if each.resolvents else None for each in (one, other)]
    kinds = [each and each.kind for each in firsts]
    if GoalKind.TRUE in kinds:
        # Which of several proofs comes first depends on the order.
        if kinds[0] != kinds[1]:
            texts = [case.names.goal(each.atoms, each.kind) if each else "nothing" for each in firsts]
            yield "resolvents", texts[0], texts[1]
        return
    sums = [len(_goals(each)) + each.dropped_atoms + each.dropped_resolvents for each in (one, other)]
    if sums[0] != sums[1]:
        yield "resolvents, dropped ones included", sums[0], sums[1]
    if one.dropped_atoms != other.dropped_atoms:
        yield "dropped_atoms", one.dropped_atoms, other.dropped_atoms
    if not one.dropped_resolvents and not other.dropped_resolvents:
        missing, extra = (
            list_missing(*sides, key=attrgetter("content", "clause"))
            for sides in ((_goals(one), _goals(other)), (_goals(other), _goals(one)))
        )
        if missing or extra:
            texts = [case.names.resolvent(only[0]) if only else "nothing more" for only in (missing, extra)]
            yield "resolvents", texts[0], texts[1]


def _goals(step: StepView) -> list[ResolventView]:
    return [each for each in step.resolvents if each.kind == GoalKind.GOAL]
