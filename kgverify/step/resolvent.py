"""The records of a step: resolvents, the list that a step offers, and the choice from it."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from kgverify.program.outcomes import GoalKind, Origin, Outcome
from kgverify.step.clauses import Atoms


class Resolvent(NamedTuple):
    """A resolvent and the clause that made it; TRUE and FALSE have no atoms.

    score: higher is better; 0 for TRUE and FALSE
    """

    atoms: Atoms
    origin_kind: Origin
    origin: int
    kind: GoalKind = GoalKind.GOAL
    score: float = 0.0

    @property
    def clause(self) -> tuple[int, int]:
        """The kind and the number of the clause that made it."""
        return int(self.origin_kind), self.origin


FALSE: Final = Resolvent((), Origin.NONE, 0, GoalKind.FALSE)
"""The dead end, which no clause makes."""

STOP: Final = FALSE._replace(kind=GoalKind.STOP)
"""The end of a derivation that the policy may choose, where a dialect offers it."""


class Taken(NamedTuple):
    """The resolvents of a step, and how many the limits dropped."""

    resolvents: Sequence[Resolvent]
    dropped_atoms: int = 0
    dropped_resolvents: int = 0


class TakenStep(NamedTuple):
    """A step of a derivation, with its choice and outcome. depth: the counted steps before it."""

    goal: Atoms
    depth: int
    taken: Taken
    choice: int
    outcome: Outcome
    log_probability: float
    is_uncounted: bool = False

    @property
    def next_depth(self) -> int:
        """The counted steps up to this one."""
        return self.depth + (not self.is_uncounted)
