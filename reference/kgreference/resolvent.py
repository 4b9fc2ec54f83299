"""A clause that matches, and what a goal becomes by one resolution with it."""

from enum import IntEnum
from typing import Final, NamedTuple

from kgreference.terms import Goal, Triple


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


class Match(NamedTuple):
    """A clause whose head unifies with an atom, under the most general unifier; a fact has the body ().

    Its variables are numbered from 0 by first appearance, body first: there are ``num_variables``.
    """

    origin_kind: OriginKind
    origin: int
    head: Triple
    body: Goal
    num_variables: int


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
