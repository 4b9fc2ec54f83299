"""The kinds of goals, the outcomes of derivations, and other codes of a step."""

from enum import IntEnum
from typing import Final


class GoalKind(IntEnum):
    """The kind of a goal: ordinary, or one of the two terminal ones, which have no atoms."""

    GOAL = 0
    TRUE = 1
    FALSE = 2


class Outcome(IntEnum):
    """The state of a derivation after a step."""

    OPEN = 0
    PROVED = 1
    FAILED = 2
    DEPTH_LIMIT = 3


NOT_PROVED_PENALTY: Final = 100.0
"""The nats subtracted from the score of a candidate that is not PROVED, when it is ranked (docs/semantics.md)."""


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
