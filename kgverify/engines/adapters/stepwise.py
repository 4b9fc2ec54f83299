"""An engine from one function, which returns the resolvents of a step. A base class provides the rest."""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import reduce
from itertools import chain, pairwise
from operator import add, attrgetter
from typing import Any, ClassVar, Final, Literal, TypeAlias

import numpy as np

from kgverify.engines.policy import Policy
from kgverify.engines.protocol import Positions, make_positions
from kgverify.errors import UserError, check_known, count_of
from kgverify.program.limits import Limits
from kgverify.program.outcomes import Outcome, Side
from kgverify.program.program import Program
from kgverify.progress import Progress, no_progress
from kgverify.step.clauses import number_variables
from kgverify.step.plain_step import Taken, TakenStep, find_outcome, log_softmax
from kgverify.trace.model.columns import Candidates, CandidateSet, Columns, Resolvents, Steps, starts_of
from kgverify.trace.model.header import FROM_SCORES, EngineInfo

AtomIds: TypeAlias = tuple[int, int, int]
"""Predicate, first, second. An argument below 0 is a variable: variable number v is -1 - v."""

Goal: TypeAlias = tuple[AtomIds, ...]
"""The atoms that remain to be proved."""


class StepwiseEngine:
    """A prover whose author provides `take_step`, which returns the resolvents of a step.

    program, limits, policy: as given, for `take_step` to use
    policies: names of the supported policies; NotImplementedError for any other
    searches: the kinds of searches that it supports; likewise

    Example:
        >>> import kgverify as kv
        >>> class Lazy(kv.StepwiseEngine):
        ...     def take_step(self, query, visited):
        ...         raise NotImplementedError("not written yet")
        >>> kv.check_engine(Lazy, examples=5).is_conforming
        False

    A prover that takes many steps at once overrides `take_steps` instead. One that implements only some stages of a step
    is a `StagedEngine`.
    """

    policies: ClassVar[tuple[str, ...]] = ("shortest",)
    searches: ClassVar[tuple[str, ...]] = ("greedy",)

    def __init__(self, program: Program, limits: Limits, policy: Policy) -> None:
        check_support(limits, policy, self.policies, self.searches)
        self.program = program
        self.limits = limits
        self.policy = policy

    def take_step(self, query: AtomIds, visited: Sequence[Goal]) -> Taken:
        """Return the resolvents of the last visited goal after the stage `limit`, at least one, with their scores."""
        raise NotImplementedError

    def take_steps(self, queries: Sequence[AtomIds], visited: Sequence[Sequence[Goal]]) -> Sequence[Taken]:
        """Take a step of each derivation. All derivations are open; their depths may differ."""
        return [self.take_step(query, goals) for query, goals in zip(queries, visited, strict=True)]

    @property
    def info(self) -> EngineInfo:
        """The engine's info: the class's name, and scores without rounding error."""
        return EngineInfo(name=type(self).__name__, mode="python")

    def prove(self, candidates: CandidateSet, progress: Progress = no_progress) -> Columns:
        """Run every candidate to its end, all of them step by step in parallel. UserError if a step has no resolvent."""
        queries = self._read_queries(candidates)
        visited: list[list[Goal]] = [[(query,)] for query in queries]
        steps: list[list[TakenStep]] = [[] for _ in queries]
        is_open = list(range(len(queries)))
        while is_open:
            taken = self._take_all([queries[i] for i in is_open], [visited[i] for i in is_open])
            for i, each in zip(is_open, taken, strict=True):
                steps[i].append(self._choose(visited[i][-1], len(steps[i]), each))
                if steps[i][-1].outcome is Outcome.OPEN:
                    visited[i].append(each.resolvents[steps[i][-1].choice].atoms)
            still_open = [i for i in is_open if steps[i][-1].outcome is Outcome.OPEN]
            progress(len(is_open) - len(still_open))
            is_open = still_open
        return self._record(candidates, steps)

    def step(self, positions: Positions) -> Columns:
        """Take one step from each position."""
        queries, visited = self._read_positions(positions)
        taken = self._take_all(queries, visited)
        chosen = [
            [self._choose(goals[-1], depth, each)]
            for goals, depth, each in zip(visited, positions.depth.tolist(), taken, strict=True)
        ]
        return self._record(positions.candidates, chosen)

    def _read_queries(self, candidates: CandidateSet) -> list[AtomIds]:
        return [(predicate, first, second) for predicate, first, second in candidates.atom.tolist()]

    def _read_positions(self, positions: Positions) -> tuple[list[AtomIds], list[list[Goal]]]:
        return read_positions(positions)

    def _record(self, candidates: CandidateSet, derivations: list[list[TakenStep]]) -> Columns:
        return collect(candidates, derivations)

    def _take_all(self, queries: Sequence[AtomIds], visited: Sequence[Sequence[Goal]]) -> Sequence[Taken]:
        taken = self.take_steps(queries, visited)
        if len(taken) != len(queries):
            raise UserError(
                f"expected {count_of(len(queries), 'step')}, found {len(taken)}",
                where=f"{type(self).__name__}.take_steps",
                fix="give one for each query, in the same order",
            )
        if not all(each.resolvents for each in taken):
            raise UserError(
                "expected a resolvent or more of each step, found none",
                where=f"{type(self).__name__}.take_step",
                fix="give Resolvent((), Origin.NONE, 0, GoalKind.FALSE) where nothing is left",
            )
        return taken

    def _show(
        self, queries: Sequence[Any], visited: Sequence[Sequence[Any]], taken: Sequence[Taken]
    ) -> tuple[Positions, Columns]:
        """Return the positions of steps that were taken, and the steps, each as a candidate."""
        num = len(queries)
        atoms = np.array(queries, np.int32).reshape(-1, 3)
        candidates = CandidateSet(np.arange(num, dtype=np.int32), np.full(num, Side.NONE, np.int8), atoms)
        depth = np.array([len(goals) - 1 for goals in visited], np.uint16)
        steps = [[self._choose(goals[-1], len(goals) - 1, each)] for goals, each in zip(visited, taken, strict=True)]
        return make_positions(candidates, depth, visited), collect(candidates, steps)

    def _choose(self, goal: Goal, depth: int, taken: Taken) -> TakenStep:
        scores = [each.score for each in taken.resolvents]
        choice = scores.index(max(scores))
        outcome = find_outcome(self.limits, taken.resolvents[choice].kind, depth + 1)
        return TakenStep(goal, depth, taken, choice, outcome, log_softmax(scores, choice))


def check_support(limits: Limits, policy: Policy, policies: Collection[str], searches: Collection[str]) -> None:
    """Raise NotImplementedError for a policy or a search that an engine does not support."""
    if policy.name not in policies:
        raise NotImplementedError(f"the policy {policy.name}")
    if limits.dialect.searching.kind not in searches:
        raise NotImplementedError(f"the search {limits.dialect.search}")


def read_positions(positions: Positions) -> tuple[list[AtomIds], list[list[Goal]]]:
    """Return the query of each position, and the goals visited, the current one last."""
    queries = [(predicate, first, second) for predicate, first, second in positions.candidates.atom.tolist()]
    atoms = [(predicate, first, second) for predicate, first, second in positions.atoms.tolist()]
    goals = [tuple(atoms[a:b]) for a, b in pairwise(starts_of(positions.num_atoms).tolist())]
    return queries, [goals[a:b] for a, b in pairwise(starts_of(positions.num_goals).tolist())]


_Fields: TypeAlias = tuple[tuple[Callable[[Any], Any], type[np.generic]], ...]

_CANDIDATES: Final[_Fields] = (
    (len, np.uint32),
    (lambda steps: steps[-1].outcome, np.int8),
    (lambda steps: any(each.taken.dropped_atoms or each.taken.dropped_resolvents for each in steps), np.uint8),
    # Step by step, like the reference: the built-in functions round otherwise.
    (lambda steps: reduce(add, (each.log_probability for each in steps), 0.0), np.float64),
)
_STEPS: Final[_Fields] = (
    (attrgetter("depth"), np.uint16),
    (lambda step: len(step.goal), np.uint16),
    (lambda step: len(step.taken.resolvents), np.uint32),
    (attrgetter("taken.dropped_atoms"), np.uint32),
    (attrgetter("taken.dropped_resolvents"), np.uint32),
    (attrgetter("choice"), np.int32),
    (attrgetter("outcome"), np.int8),
)
_RESOLVENTS: Final[_Fields] = (
    (attrgetter("kind"), np.uint8),
    (lambda resolvent: len(resolvent.atoms), np.uint16),
    (attrgetter("origin_kind"), np.uint8),
    (attrgetter("origin"), np.int32),
    (attrgetter("score"), np.float64),
)
"""The columns of each level above atoms: how to read the value from a derivation, a step or a resolvent, and its type."""


def collect(candidates: CandidateSet, derivations: list[list[TakenStep]]) -> Columns:
    """Collect the steps of derivations into columns."""
    steps = list(chain.from_iterable(derivations))
    resolvents = [each for step in steps for each in step.taken.resolvents]

    def read(items: Sequence[Any], fields: _Fields) -> list[Any]:
        return [np.array(list(map(value_of, items)), kind) for value_of, kind in fields]

    def join(goals: Iterable[Goal]) -> Any:
        return np.array(list(chain.from_iterable(goals)), np.int32).reshape(-1, 3)

    return Columns(
        Candidates(*candidates, *read(derivations, _CANDIDATES)),
        Steps(*[*read(steps, _STEPS), join(step.goal for step in steps)]),
        Resolvents(*[*read(resolvents, _RESOLVENTS), join(each.atoms for each in resolvents)]),
    )


Memory: TypeAlias = Literal["none", "sets", "goals"]

UNKNOWN_TO_STEPS: Final = (
    "resolvents.origin_kind",
    "resolvents.origin",
    "steps.dropped_atoms",
    "steps.dropped_resolvents",
    "candidates.is_limited",
)
"""The columns unknown to a prover that returns only successors."""

GIVE_UP_SCORE: Final = -64.0
"""The score that kgverify assigns to an action that gives up, or to an empty goal: below that of any goal."""


def describe_mode(arrays: str, given: Collection[str] = ()) -> str:
    """Return the mode of an engine: its arrays, and who chooses. given: which of "scores" and "choice" it returns."""
    if "choice" in given:
        return arrays
    return f"{arrays}, {FROM_SCORES if 'scores' in given else 'choices by kgverify'}"


def _as_set(goal: Iterable[Sequence[Any]]) -> Hashable:
    return frozenset(map(tuple, goal))


def _as_goal(goal: Iterable[Sequence[Any]]) -> Hashable:
    return number_variables((predicate, a, b) for predicate, a, b in goal)


MEMORIES: Final[Mapping[str, Callable[[Iterable[Sequence[Any]]], Hashable] | None]] = {
    "none": None,
    "sets": _as_set,
    "goals": _as_goal,
}
"""A function for each memory that converts a visited goal to the form that is kept."""


def check_memory(memory: str, where: str) -> None:
    """Raise a UserError unless the memory exists."""
    check_known(memory, MEMORIES, "memory", f"{where}.memory")
