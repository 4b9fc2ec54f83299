"""The goals that the reference prover can reach from some queries, and how far each is from a proof."""

from collections.abc import Iterable, Iterator, Sequence, Set
from typing import NamedTuple, TypeAlias

import numpy as np

from kgreference.program import Program
from kgreference.resolvent import Kind, Resolvent
from kgreference.step import Limits, take_step
from kgreference.terms import Atom, Goal

Triple: TypeAlias = tuple[int, int, int]


class Decision(NamedTuple):
    """A choice to imitate: a goal, its resolvents (two or more), and the index of the one that leads to a proof."""

    goal: Goal
    resolvents: tuple[Goal, ...]
    choice: int


class Stray(NamedTuple):
    """How often, and by which random numbers, a derivation takes any resolvent at all."""

    random: np.random.Generator
    share: float


class _Indifferent:
    """The policy of a search, which looks at all resolvents."""

    def scores(self, goal: Goal, resolvents: Sequence[Resolvent]) -> list[float]:
        return [0.0] * len(resolvents)


class ProofGraph:
    """The goals reached, breadth first, from all queries at once.

    The queries are no facts of the program. At most `max_steps` goals are expanded, none deeper than the limits
    allow and none but a query that holds a barred atom; a goal that is not expanded counts as one without a proof.
    """

    def __init__(
        self, program: Program, limits: Limits, queries: Iterable[Triple], barred: Set[Triple], max_steps: int
    ) -> None:
        self._limits = limits._replace(exclude_query=False)
        self._successors: dict[Goal, tuple[Goal, ...]] = {}
        self._distance: dict[Goal, int] = {}
        self._explore(program, [(Atom(*query),) for query in queries], barred, max_steps)
        self._measure()

    def distance(self, goal: Goal) -> float:
        """Steps to the nearest proof; infinite where none was found."""
        return self._distance.get(goal, float("inf"))

    def is_provable(self, query: Triple) -> bool:
        """Whether a proof within the limits was found."""
        return self.distance((Atom(*query),)) <= self._limits.max_depth

    def prove(self, query: Triple, stray: Stray | None = None) -> Iterator[Decision]:
        """The decisions of the shortest proof, of equal ones the first.

        With `stray`, the derivation now and then takes another resolvent, and goes on from there: what to do after a
        mistake is a lesson too.
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
            if stray is not None and stray.random.random() < stray.share:
                goal = resolvents[int(stray.random.integers(len(resolvents)))]
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
