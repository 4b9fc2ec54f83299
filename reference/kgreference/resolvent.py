"""The clauses that match an atom, and the resolvents of a goal with them."""

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from functools import partial
from typing import Any, Final, NamedTuple

from kgreference.terms import Goal


class Kind(IntEnum):
    """The kind of a resolvent: remaining atoms (GOAL), a proof (TRUE), a dead end (FALSE), or stopping (STOP).

    Only some dialects offer STOP.
    """

    GOAL = 0
    TRUE = 1
    FALSE = 2
    STOP = 3


class OriginKind(IntEnum):
    """The kind of clause that made a resolvent."""

    NONE = 0
    RULE = 1
    FACT = 2


class Matches(NamedTuple):
    """The clauses whose heads unify with an atom, in order, each under the most general unifier, as columns.

    origins:        indices of the rules or of the facts
    firsts:         the first terms of their heads
    seconds:        the second terms of their heads
    bodies:         the atoms of their bodies; a fact has none
    free_variables: the first variable that does not occur in the clause. A clause's own variables are numbered from 0
                    by first appearance, body first
    """

    origins: tuple[int, ...]
    firsts: tuple[int, ...]
    seconds: tuple[int, ...]
    bodies: tuple[Goal, ...]
    free_variables: tuple[int, ...]

    @classmethod
    def of(cls, rows: Sequence[tuple[int, int, int, Goal, int]]) -> "Matches":
        """Build the columns from rows, one for each clause."""
        return cls(*zip(*rows, strict=True)) if rows else NO_MATCHES


NO_MATCHES: Final = Matches((), (), (), (), ())
"""The matches of an atom that unifies with nothing."""


class Resolvent(NamedTuple):
    """The remaining atoms, and the clause that made them.

    ``origin`` is the index of a rule, or of a fact in the sorted facts. TRUE, FALSE and STOP have no atoms. Before the
    stage `prune` every resolvent is a GOAL, even without atoms.
    """

    kind: Kind
    atoms: Goal
    origin_kind: OriginKind
    origin: int


make_resolvent: Final[Callable[[Iterable[Any]], Resolvent]] = partial(tuple.__new__, Resolvent)
"""A function that makes a resolvent from its fields, in order; calling the class takes several times as long."""

FALSE: Final = Resolvent(Kind.FALSE, (), OriginKind.NONE, 0)
"""The dead end; no clause makes it."""

STOP: Final = Resolvent(Kind.STOP, (), OriginKind.NONE, 0)
"""The end of a derivation that the policy may choose."""
