"""An engine from one function: its author says what a step's resolvents are, and the rest of the protocol is done here."""

import math
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np

from kgverify.engines.policy import Policy
from kgverify.engines.protocol import Positions, Progress, no_progress
from kgverify.errors import UserError
from kgverify.logic.limits import Limits
from kgverify.logic.outcomes import GoalKind, Origin, Outcome
from kgverify.logic.program import Program
from kgverify.trace.columns import Candidates, CandidateSet, Columns, Resolvents, Steps, starts_of
from kgverify.trace.header import EngineInfo

Goal: TypeAlias = tuple[tuple[int, int, int], ...]
"""Atoms in ids: predicate, first, second; variable v is -1 - v."""


class Resolvent(NamedTuple):
    """A resolvent and the clause that made it; TRUE and FALSE have no atoms.

    score: higher is better; 0 for TRUE and FALSE
    """

    atoms: Goal
    origin_kind: Origin
    origin: int
    kind: GoalKind = GoalKind.GOAL
    score: float = 0.0


class Taken(NamedTuple):
    """What a step can choose from, and what the limits dropped."""

    resolvents: Sequence[Resolvent]
    dropped_atoms: int = 0
    dropped_resolvents: int = 0


class _Step(NamedTuple):
    goal: Goal
    depth: int
    taken: Taken
    choice: int
    outcome: Outcome
    log_probability: float


class StepwiseEngine:
    """Proves one candidate after the other; a subclass says in `take_step` what the resolvents of a step are.

    program, limits, policy: as given, for `take_step` to use
    policies: names of those that it knows; NotImplementedError for another one
    """

    policies: ClassVar[tuple[str, ...]] = ("shortest",)

    def __init__(self, program: Program, limits: Limits, policy: Policy) -> None:
        if policy.name not in self.policies:
            raise NotImplementedError(f"the policy {policy.name}")
        self.program = program
        self.limits = limits
        self.policy = policy

    def take_step(self, query: tuple[int, int, int], visited: Sequence[Goal]) -> Taken:
        """The resolvents of the last visited goal, after the stage `limit`, each with its score; at least one."""
        raise NotImplementedError

    @property
    def info(self) -> EngineInfo:
        """The class's name; scores without rounding error."""
        return EngineInfo(name=type(self).__name__, mode="python")

    def prove(self, candidates: CandidateSet, progress: Progress = no_progress) -> Columns:
        """Run every candidate to its end. UserError where `take_step` gives no resolvent."""
        derivations = []
        for predicate, first, second in candidates.atom.tolist():
            query = (predicate, first, second)
            visited: list[Goal] = [(query,)]
            steps: list[_Step] = []
            while not steps or steps[-1].outcome is Outcome.OPEN:
                steps.append(self._choose(query, visited, len(steps)))
                visited.append(steps[-1].taken.resolvents[steps[-1].choice].atoms)
            derivations.append(steps)
            progress(1)
        return _collect(candidates, derivations)

    def step(self, positions: Positions) -> Columns:
        """Take one step from each position."""
        atoms = [(p, a, b) for p, a, b in positions.atoms.tolist()]
        goals = [tuple(atoms[a:b]) for a, b in pairwise(starts_of(positions.num_atoms).tolist())]
        taken = []
        bounds = pairwise(starts_of(positions.num_goals).tolist())
        for (begin, end), depth, (p, a, b) in zip(
            bounds, positions.depth.tolist(), positions.candidates.atom.tolist(), strict=True
        ):
            taken.append([self._choose((p, a, b), goals[begin:end], depth)])
        return _collect(positions.candidates, taken)

    def _choose(self, query: tuple[int, int, int], visited: Sequence[Goal], depth: int) -> _Step:
        taken = self.take_step(query, visited)
        if not taken.resolvents:
            raise UserError("a step without a resolvent", where="take_step", fix="give FALSE where nothing is left")
        scores = [each.score for each in taken.resolvents]
        choice = scores.index(max(scores))
        total = math.fsum(math.exp(score - scores[choice]) for score in scores)
        ends = {GoalKind.TRUE: Outcome.PROVED, GoalKind.FALSE: Outcome.FAILED}
        is_last = depth + 1 >= self.limits.max_depth
        outcome = ends.get(taken.resolvents[choice].kind, Outcome.DEPTH_LIMIT if is_last else Outcome.OPEN)
        return _Step(visited[-1], depth, taken, choice, outcome, -math.log(total))


def _collect(candidates: CandidateSet, derivations: list[list[_Step]]) -> Columns:
    steps = list(chain.from_iterable(derivations))
    resolvents = [each for step in steps for each in step.taken.resolvents]

    def atoms(goals: list[Goal]) -> "np.ndarray[tuple[int, ...], np.dtype[np.int32]]":
        return np.array([atom for goal in goals for atom in goal], np.int32).reshape(-1, 3)

    is_limited = [any(each.taken.dropped_atoms or each.taken.dropped_resolvents for each in d) for d in derivations]
    return Columns(
        Candidates(
            candidates.query,
            candidates.side,
            candidates.atom,
            np.array([len(each) for each in derivations], np.uint32),
            np.array([each[-1].outcome for each in derivations], np.int8),
            np.array(is_limited, np.uint8),
            np.array([math.fsum(step.log_probability for step in each) for each in derivations], np.float64),
        ),
        Steps(
            np.array([step.depth for step in steps], np.uint16),
            np.array([len(step.goal) for step in steps], np.uint16),
            np.array([len(step.taken.resolvents) for step in steps], np.uint32),
            np.array([step.taken.dropped_atoms for step in steps], np.uint32),
            np.array([step.taken.dropped_resolvents for step in steps], np.uint32),
            np.array([step.choice for step in steps], np.int32),
            np.array([step.outcome for step in steps], np.int8),
            atoms([step.goal for step in steps]),
        ),
        Resolvents(
            np.array([each.kind for each in resolvents], np.uint8),
            np.array([len(each.atoms) for each in resolvents], np.uint16),
            np.array([each.origin_kind for each in resolvents], np.uint8),
            np.array([each.origin for each in resolvents], np.int32),
            np.array([each.score for each in resolvents], np.float64),
            atoms([each.atoms for each in resolvents]),
        ),
    )
