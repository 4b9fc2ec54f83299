"""The clauses that match, and what a goal becomes by one resolution with one of them."""

from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from kgreference.terms import Goal


class Kind(IntEnum):
    """Whether anything is left to prove (GOAL), nothing (TRUE), or there is no way on (FALSE)."""

    GOAL = 0
    TRUE = 1
    FALSE = 2


class OriginKind(IntEnum):
    """What kind of clause gave a resolvent."""

    NONE = 0
    RULE = 1
    FACT = 2


class Matches(NamedTuple):
    """The clauses whose heads unify with an atom, in order, each under the most general unifier: a column of each part.

    origins:        indices of the rules or of the facts
    firsts:         the first terms of their heads
    seconds:        the second terms of their heads
    bodies:         the atoms of their bodies; a fact has none
    free_variables: the first variable that the clause does not hold; its own are numbered from 0 by first
                    appearance, body first
    """

    origins: tuple[int, ...]
    firsts: tuple[int, ...]
    seconds: tuple[int, ...]
    bodies: tuple[Goal, ...]
    free_variables: tuple[int, ...]

    @classmethod
    def of(cls, rows: Sequence[tuple[int, int, int, Goal, int]]) -> "Matches":
        """The columns of these rows, one row for each clause."""
        return cls(*zip(*rows, strict=True)) if rows else cls((), (), (), (), ())


class Resolvent(NamedTuple):
    """Atoms left to prove, and the clause they come from.

    ``origin`` is the index of a rule, or of a fact in the sorted facts. TRUE and FALSE hold no atoms.
    Before the stage `prune` every resolvent is a GOAL, even one without atoms.
    """

    kind: Kind
    atoms: Goal
    origin_kind: OriginKind
    origin: int


FALSE: Final = Resolvent(Kind.FALSE, (), OriginKind.NONE, 0)
"""The dead end. No clause gave it."""
