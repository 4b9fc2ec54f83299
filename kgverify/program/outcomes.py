"""The kinds of goals, the outcomes of derivations, and other codes of a step."""

from enum import IntEnum
from typing import Final


class GoalKind(IntEnum):
    """The kind of a goal: ordinary, or a terminal one, which has no atoms unless the engine left some by mistake.

    STOP is a terminal action of an engine's own, such as giving up: chosen, it ends the derivation as FAILED.
    """

    GOAL = 0
    TRUE = 1
    FALSE = 2
    STOP = 3


class Outcome(IntEnum):
    """The state of a derivation after a step."""

    OPEN = 0
    PROVED = 1
    FAILED = 2
    DEPTH_LIMIT = 3


NOT_PROVED_PENALTY: Final = 100.0
"""The nats subtracted from the score of a candidate that is not PROVED, when it is ranked (docs/semantics.md)."""

ENDS: Final = {GoalKind.TRUE: Outcome.PROVED, GoalKind.FALSE: Outcome.FAILED, GoalKind.STOP: Outcome.FAILED}
"""The outcome of a derivation whose chosen resolvent is terminal."""


class Side(IntEnum):
    """The argument of the query's triple that a candidate replaces; `NONE` outside a ranking."""

    HEAD = 0
    TAIL = 1
    NONE = 2


class Origin(IntEnum):
    """The kind of clause that made a resolvent; `NONE` for FALSE, which no clause makes."""

    NONE = 0
    RULE = 1
    FACT = 2
