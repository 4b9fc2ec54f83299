"""The decisions that training imitates. They come from proofs of triples in train and valid by the plain step."""

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from kgverify.graphs.graph import KnowledgeGraph
from kgverify.program.fact_index import Ids
from kgverify.program.limits import Limits
from kgverify.program.outcomes import GoalKind
from kgverify.program.program import Program
from kgverify.progress import Progress, no_progress
from kgverify.step.clauses import Atoms, Clauses
from kgverify.step.plain_step import Situation, filter_resolvents, match_facts, match_rules, resolve, select


class Decision(NamedTuple):
    """A choice to imitate: a goal, its resolvents (at least two), and the index of the resolvent that leads to a proof."""

    goal: Atoms
    resolvents: tuple[Atoms, ...]
    choice: int


class Exploration(NamedTuple):
    """The probability that a derivation takes a random resolvent, and the random numbers."""

    random: np.random.Generator
    share: float


class ProofGraph:
    """The goals that a breadth-first search from all queries at once has reached.

    The queries must not be facts of the program. At most `max_steps` goals are expanded, within the depth limit. Goals
    with a barred atom are not expanded, except queries. A goal that is not expanded counts as unproved.
    """

    def __init__(
        self, program: Program, limits: Limits, queries: Iterable[Ids], barred: Set[Ids], max_steps: int
    ) -> None:
        self._limits, self._clauses = limits, Clauses(program, exclude_query=False)
        self._successors: dict[Atoms, tuple[Atoms, ...]] = {}
        self._distance: dict[Atoms, int] = {}
        self._explore([(query,) for query in queries], barred, max_steps)
        self._measure()

    def distance(self, goal: Atoms) -> float:
        """Return the number of steps to the nearest proof; infinite without a proof."""
        return self._distance.get(goal, float("inf"))

    def is_provable(self, query: Ids) -> bool:
        """Return whether a proof within the limits was found."""
        return self.distance((query,)) <= self._limits.max_depth

    def prove(self, query: Ids, exploration: Exploration | None = None) -> Iterator[Decision]:
        """Yield the decisions of the shortest proof, the first among equally short ones.

        With `exploration`, the derivation sometimes takes a random resolvent and continues from there, so that the
        policy also learns to recover from a mistake.
        """
        goal: Atoms = (query,)
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

    def _explore(self, level: list[Atoms], barred: Set[Ids], max_steps: int) -> None:
        seen = set(level)
        for _ in range(self._limits.max_depth):
            following: list[Atoms] = []
            for goal in level:
                if len(self._successors) == max_steps:
                    return
                situation = Situation(self._clauses, self._limits, None, (goal,))
                selected = select(situation)
                rules, facts = match_rules(situation, selected), match_facts(situation, selected)
                resolvents = filter_resolvents(situation, resolve(situation, rules, facts)).taken.resolvents
                if resolvents[0].kind == GoalKind.TRUE:
                    self._distance[goal] = 1
                goals = tuple(dict.fromkeys(each.atoms for each in resolvents if each.kind == GoalKind.GOAL))
                self._successors[goal] = goals
                for each in goals:
                    if each not in seen and barred.isdisjoint(each):
                        seen.add(each)
                        following.append(each)
            level = following

    def _measure(self) -> None:
        predecessors: dict[Atoms, list[Atoms]] = {}
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

    rounds:       the number of rounds; each hides facts and searches for proofs without them
    hidden_share: the share of facts to hide, among the facts whose predicate heads a rule; hidden facts are a round's
                  queries
    num_queries:  the largest number of queries of a round
    max_steps:    the largest number of goals that the search of a round expands
    num_explorations:   the number of additional derivations of each proved query, which leave the shortest proof at
                        random
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

    Held-out triples are harder than facts, since train also lacks other facts about their first arguments. So a round
    also hides facts about the first argument of each hidden query: all facts of a predicate, with the frequency at
    which train lacks that predicate for the first arguments of valid. Test triples are neither queries nor part of a
    proof.
    """
    program = graph.program
    limits = Limits(max_depth=limits.max_depth, max_atoms=limits.max_atoms, max_resolvents=limits.max_resolvents)
    random = np.random.default_rng(seed)
    facts = [(p, a, b) for p, a, b in program.facts.tolist()]
    present, heads = set(facts), {rule.clause_head[0] for rule in program.rules}
    test = set(_triples(graph, "test"))
    queries = [
        each for each in dict.fromkeys([*facts, *_triples(graph, "valid")]) if each not in test and each[0] in heads
    ]
    lacking = _measure_lacking(graph, facts)
    decisions: list[Decision] = []
    num_queries = num_proved = 0
    for _ in range(plan.rounds):
        hidden = _choose_hidden(random, queries, present, plan)
        gone = {*hidden, *_choose_forgotten(random, hidden, facts, lacking)}
        left = np.array([fact for fact in facts if fact not in gone], np.int32).reshape(-1, 3)
        proofs = ProofGraph(replace(program, facts=left), limits, hidden, test, plan.max_steps)
        proved = [query for query in hidden if proofs.is_provable(query)]
        for query in proved:
            decisions += proofs.prove(query)
            for _ in range(plan.num_explorations):
                decisions += proofs.prove(query, Exploration(random, plan.exploration_share))
        num_queries += len(hidden)
        num_proved += len(proved)
        progress(1)
    return GatheredDecisions(tuple(decisions), num_queries, num_proved)


def _choose_hidden(random: np.random.Generator, queries: list[Ids], facts: Set[Ids], plan: DecisionPlan) -> list[Ids]:
    """Choose queries in random order: all queries that are not facts, and a share of the facts, up to the plan's number."""
    is_drawn = random.random(len(queries)) < plan.hidden_share
    hidden = [each for each, drawn in zip(queries, is_drawn, strict=True) if drawn or each not in facts]
    return [hidden[i] for i in random.permutation(len(hidden))[: plan.num_queries].tolist()]


def _choose_forgotten(
    random: np.random.Generator, hidden: list[Ids], facts: list[Ids], lacking: list[float]
) -> list[Ids]:
    subjects = sorted({query[1] for query in hidden})
    is_forgotten = random.random((len(lacking), len(subjects))) < np.array(lacking)[:, None]
    forgotten = {(p, subjects[i]) for p, i in np.argwhere(is_forgotten).tolist()}
    return [fact for fact in facts if fact[:2] in forgotten]


def _measure_lacking(graph: KnowledgeGraph, facts: list[Ids]) -> list[float]:
    """Return, for each predicate, the share of the first arguments of valid that lack its facts; 0 without valid."""
    subjects = sorted({triple[1] for triple in _triples(graph, "valid")})
    known = {fact[:2] for fact in facts}
    predicates = range(len(graph.program.symbols.predicates))
    num_lacking = [sum((p, each) not in known for each in subjects) for p in predicates]
    return [num / max(len(subjects), 1) for num in num_lacking]


def _triples(graph: KnowledgeGraph, split: str) -> list[Ids]:
    atoms = graph.valid if split == "valid" else graph.test
    return [(p, a, b) for p, a, b in map(graph.program.symbols.encode, atoms)]
