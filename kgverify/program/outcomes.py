"""The words for a step: kinds of goals, outcomes of derivations, stages, and classes of differences."""

from enum import IntEnum, StrEnum
from typing import Final

from kgverify.codes import Code


class GoalKind(IntEnum):
    """The kind of a goal: ordinary or terminal.

    A terminal goal has no atoms, unless the engine left some by mistake. STOP is an engine-specific terminal action,
    such as giving up. Choosing it ends the derivation as FAILED.
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


class Stage(StrEnum):
    """A stage of a run: the shared vocabulary of code, traces, reports and faults.

    `CORRUPT` comes before any derivation, `SELECT` to `FINISH` are one step, in which `EXPAND` to `AGGREGATE` belong to
    searches with several paths, `RECYCLE` is the batch machinery around the steps, `SHARD` divides the candidates among
    processes, `RANK` and `METRIC` come after.

    Example:
        >>> import kgverify as kv
        >>> kv.Stage.MATCH_FACTS.value
        'match_facts'
    """

    CORRUPT = "corrupt"
    SELECT = "select"
    MATCH_RULES = "match_rules"
    MATCH_FACTS = "match_facts"
    RESOLVE = "resolve"
    PRUNE = "prune"
    RENAME = "rename"
    REVISIT = "revisit"
    CLOSE = "close"
    LIMIT = "limit"
    SCORE = "score"
    EXPAND = "expand"
    TOP_K = "top_k"
    MERGE = "merge"
    AGGREGATE = "aggregate"
    CHOOSE = "choose"
    ADVANCE = "advance"
    FINISH = "finish"
    RECYCLE = "recycle"
    SHARD = "shard"
    RANK = "rank"
    METRIC = "metric"


SEARCH_STAGES: Final = (Stage.EXPAND, Stage.TOP_K, Stage.MERGE, Stage.AGGREGATE)
"""The stages that only a search has: those of all paths of a candidate together."""

STEP_STAGES: Final[tuple[Stage, ...]] = tuple(each for each in tuple(Stage)[1:18] if each not in SEARCH_STAGES)
"""The stages of one step of one path."""


class DifferenceClass(StrEnum):
    """The class of a difference.

    missing, extra: one side lacks something; reordered; renamed: different variable names; substituted: the same clause
    gave different atoms; stale: a value of an earlier step; foreign: a value of another derivation; rounding: within
    the arithmetic's error; tie: a different argmax at equal scores; content: some difference, not known more exactly;
    limit: the limits dropped different resolvents; outcome, rank, metric: only this value differs; number: a score or a
    sum beyond its tolerance; proof_lost, false_proof: a proof on one side only; unsound: no clause of the program explains
    a resolvent; malformed: a resolvent is not a goal; lost, doubled, wrong_rank: no process, several processes, or the
    wrong one computed a candidate; unclassified: a defect of kgverify.
    """

    MISSING = "missing"
    EXTRA = "extra"
    REORDERED = "reordered"
    RENAMED = "renamed"
    SUBSTITUTED = "substituted"
    STALE = "stale"
    FOREIGN = "foreign"
    ROUNDING = "rounding"
    TIE = "tie"
    CONTENT = "content"
    LIMIT = "limit"
    NUMBER = "number"
    OUTCOME = "outcome"
    RANK = "rank"
    METRIC = "metric"
    PROOF_LOST = "proof_lost"
    FALSE_PROOF = "false_proof"
    UNSOUND = "unsound"
    MALFORMED = "malformed"
    LOST = "lost"
    DOUBLED = "doubled"
    WRONG_RANK = "wrong_rank"
    UNCLASSIFIED = "unclassified"

    @property
    def code(self) -> Code:
        """The stable code of the class."""
        return Code[self.name]
