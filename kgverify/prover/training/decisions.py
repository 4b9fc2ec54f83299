"""The decisions that training imitates, from the reference's proofs of triples in train and valid."""

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from kgreference.program import Program
from kgreference.resolvent import Kind, Resolvent
from kgreference.step import Limits as ReferenceLimits
from kgreference.step import take_step
from kgreference.terms import Atom, Goal
from kgverify.engines.reference.program import build_reference_program
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.program.limits import Limits
from kgverify.progress import Progress, no_progress

Triple: TypeAlias = tuple[int, int, int]


class Decision(NamedTuple):
    """A choice to imitate: a goal, its resolvents (two or more), and the index of the resolvent that leads to a proof."""

    goal: Goal
    resolvents: tuple[Goal, ...]
    choice: int


class Exploration(NamedTuple):
    """The probability that a derivation takes a random resolvent, and the random numbers."""

    random: np.random.Generator
    share: float


class _Indifferent:
    """The policy of a search that expands all resolvents."""

    def scores(self, goal: Goal, resolvents: Sequence[Resolvent]) -> list[float]:
        return [0.0] * len(resolvents)


class ProofGraph:
    """The goals reached, breadth first, from all queries at once.

    The queries must not be facts of the program. At most `max_steps` goals are expanded, within the depth limit; goals with
    a barred atom are not expanded, except queries. A goal that is not expanded counts as one without a proof.
    """

    def __init__(
        self, program: Program, limits: ReferenceLimits, queries: Iterable[Triple], barred: Set[Triple], max_steps: int
    ) -> None:
        self._limits = limits._replace(exclude_query=False)
        self._successors: dict[Goal, tuple[Goal, ...]] = {}
        self._distance: dict[Goal, int] = {}
        self._explore(program, [(Atom(*query),) for query in queries], barred, max_steps)
        self._measure()

    def distance(self, goal: Goal) -> float:
        """Return the number of steps to the nearest proof; infinite without a proof."""
        return self._distance.get(goal, float("inf"))

    def is_provable(self, query: Triple) -> bool:
        """Return whether a proof within the limits was found."""
        return self.distance((Atom(*query),)) <= self._limits.max_depth

    def prove(self, query: Triple, exploration: Exploration | None = None) -> Iterator[Decision]:
        """Yield the decisions of the shortest proof, the first among equal ones.

        With `exploration`, the derivation takes a random resolvent at times, and continues from there: the policy also learns how
        to recover from a mistake.
        """
        goal: Goal = (Atom(*query),)
        visited = {goal}
        for _ in range(self._limits.max_depth):
            resolvents = tuple(each for each in self._successors.get(goal, ()) if each not in visited)
            if not resolvents or self._distance.get(goal) == 1:
                return
            nearest = min(resolvents, key=self.distance)
            if nearest not in self._distance:
                return
            if len(resolvents) > 1:
                yield Decision(goal, resolvents, resolvents.index(nearest))
            goal = nearest
            if exploration is not None and exploration.random.random() < exploration.share:
                goal = resolvents[int(exploration.random.integers(len(resolvents)))]
            visited.add(goal)

    def _explore(self, program: Program, level: list[Goal], barred: Set[Triple], max_steps: int) -> None:
        policy, seen = _Indifferent(), set(level)
        for _ in range(self._limits.max_depth):
            following: list[Goal] = []
            for goal in level:
                if len(self._successors) == max_steps:
                    return
                resolvents = take_step(program, self._limits, policy, goal[0], goal, 0, frozenset()).after_limit
                if resolvents[0].kind == Kind.TRUE:
                    self._distance[goal] = 1
                goals = tuple(dict.fromkeys(each.atoms for each in resolvents if each.kind == Kind.GOAL))
                self._successors[goal] = goals
                for each in goals:
                    if each not in seen and barred.isdisjoint(each):
                        seen.add(each)
                        following.append(each)
            level = following

    def _measure(self) -> None:
        predecessors: dict[Goal, list[Goal]] = {}
        for goal, resolvents in self._successors.items():
            for each in resolvents:
                predecessors.setdefault(each, []).append(goal)
        level = list(self._distance)
        while level:
            following = []
            for goal in level:
                for each in predecessors.get(goal, ()):
                    if each not in self._distance:
                        self._distance[each] = self._distance[goal] + 1
                        following.append(each)
            level = following


@dataclass(frozen=True)
class DecisionPlan:
    """The plan for gathering decisions.

    rounds:       the rounds; each hides facts and searches for proofs without them
    hidden_share: the share of hidden facts among those whose predicate heads a rule; they are a round's queries
    num_queries:  the most queries of a round
    max_steps:    the most goals that the search of a round expands
    num_explorations:   the further derivations of each proved query, which leave the shortest proof at random
    exploration_share:  the probability that such a derivation takes a random resolvent
    """

    rounds: int = 64
    hidden_share: float = 0.5
    num_queries: int = 400
    max_steps: int = 5_000
    num_explorations: int = 4
    exploration_share: float = 0.6


@dataclass(frozen=True)
class GatheredDecisions:
    """The decisions to imitate, and the numbers of queries and of proved queries over all rounds."""

    decisions: tuple[Decision, ...]
    num_queries: int
    num_proved: int


def gather_decisions(
    graph: KnowledgeGraph, limits: Limits, plan: DecisionPlan, seed: int, progress: Progress = no_progress
) -> GatheredDecisions:
    """Gather the decisions of all rounds, determined by the seed.

    Held-out triples are harder than facts, since train also lacks other facts about their first arguments. So a round also
    forgets facts about the first argument of each hidden query: all those of a predicate, with the frequency at which train
    lacks that predicate for the first arguments of valid. Test triples are neither queries nor part of a proof.
    """
    program = build_reference_program(graph.program)
    reference_limits = ReferenceLimits(limits.max_depth, limits.max_atoms, limits.max_resolvents)
    random = np.random.default_rng(seed)
    test = set(_triples(graph, "test"))
    known = [*program.facts, *_triples(graph, "valid")]
    queries = [each for each in dict.fromkeys(known) if each not in test and program.rules_apart(each[0], 0)]
    lacking = _measure_lacking(graph, program)
    decisions: list[Decision] = []
    num_queries = num_proved = 0
    for _ in range(plan.rounds):
        hidden = _choose_hidden(random, queries, program, plan)
        gone = {*hidden, *_choose_forgotten(random, hidden, program, lacking)}
        facts = [fact for fact in program.facts if fact not in gone]
        reduced = Program(program.predicates, program.constants, facts, program.rules)
        proofs = ProofGraph(reduced, reference_limits, hidden, test, plan.max_steps)
        proved = [query for query in hidden if proofs.is_provable(query)]
        for query in proved:
            decisions += proofs.prove(query)
            for _ in range(plan.num_explorations):
                decisions += proofs.prove(query, Exploration(random, plan.exploration_share))
        num_queries += len(hidden)
        num_proved += len(proved)
        progress(1)
    return GatheredDecisions(tuple(decisions), num_queries, num_proved)


def _choose_hidden(
    random: np.random.Generator, queries: list[Triple], program: Program, plan: DecisionPlan
) -> list[Triple]:
    """Choose queries in random order: all that are not facts, and a share of the facts, up to the plan's number."""
    is_drawn = random.random(len(queries)) < plan.hidden_share
    hidden = [each for each, drawn in zip(queries, is_drawn, strict=True) if drawn or each not in program.fact_index]
    return [hidden[i] for i in random.permutation(len(hidden))[: plan.num_queries].tolist()]


def _choose_forgotten(
    random: np.random.Generator, hidden: list[Triple], program: Program, lacking: list[float]
) -> list[Triple]:
    subjects = sorted({query[1] for query in hidden})
    is_forgotten = random.random((len(lacking), len(subjects))) < np.array(lacking)[:, None]
    forgotten = {(p, subjects[i]) for p, i in np.argwhere(is_forgotten).tolist()}
    return [fact for fact in program.facts if fact[:2] in forgotten]


def _measure_lacking(graph: KnowledgeGraph, program: Program) -> list[float]:
    """Return, for each predicate, the share of the first arguments of valid without such a fact; 0 without valid."""
    subjects = sorted({triple[1] for triple in _triples(graph, "valid")})
    known = {fact[:2] for fact in program.facts}
    num_lacking = [sum((p, each) not in known for each in subjects) for p in range(len(program.predicates))]
    return [num / max(len(subjects), 1) for num in num_lacking]


def _triples(graph: KnowledgeGraph, split: str) -> list[Triple]:
    atoms = graph.valid if split == "valid" else graph.test
    return [graph.program.symbols.encode(atom) for atom in atoms]
