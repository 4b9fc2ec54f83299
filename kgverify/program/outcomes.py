"""What a goal is and how a derivation stands."""

from enum import IntEnum


class GoalKind(IntEnum):
    """An ordinary goal, or one of the two terminal ones; these have no atoms."""

    GOAL = 0
    TRUE = 1
    FALSE = 2


class Outcome(IntEnum):
    """How a derivation stands after a step."""

    OPEN = 0
    PROVED = 1
    FAILED = 2
    DEPTH_LIMIT = 3


class Side(IntEnum):
    """Which argument of the query's triple the candidate replaces; `NONE` outside a ranking."""

    HEAD = 0
    TAIL = 1
    NONE = 2


class Origin(IntEnum):
    """Which kind of clause made a resolvent; `NONE` for FALSE, which no clause makes."""

    NONE = 0
    RULE = 1
    FACT = 2
