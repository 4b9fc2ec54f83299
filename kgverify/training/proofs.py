"""The goals that the reference prover can reach from some queries, and their distances from a proof."""

from collections.abc import Iterable, Iterator, Sequence, Set
from typing import NamedTuple, TypeAlias

import numpy as np

from kgreference.program import Program
from kgreference.resolvent import Kind, Resolvent
from kgreference.step import Limits, take_step
from kgreference.terms import Atom, Goal

Triple: TypeAlias = tuple[int, int, int]


class Decision(NamedTuple):
    """A choice to imitate: a goal, its resolvents (two or more), and the index of the resolvent that leads to a proof."""

    goal: Goal
    resolvents: tuple[Goal, ...]
    choice: int


class Stray(NamedTuple):
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
        self, program: Program, limits: Limits, queries: Iterable[Triple], barred: Set[Triple], max_steps: int
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

    def prove(self, query: Triple, stray: Stray | None = None) -> Iterator[Decision]:
        """Yield the decisions of the shortest proof, the first among equal ones.

        With `stray`, the derivation takes a random resolvent at times, and continues from there: the policy also learns how
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
