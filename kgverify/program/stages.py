"""The stages of a step and of what surrounds it, in the order in which they run."""

from enum import StrEnum


class Stage(StrEnum):
    """A stage of a run: the shared vocabulary of code, traces, reports and faults.

    `CORRUPT` comes before any derivation, `SELECT` to `FINISH` are one step, `RECYCLE` is the batch machinery
    around the steps, `RANK` and `METRIC` come after.

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
    CHOOSE = "choose"
    ADVANCE = "advance"
    FINISH = "finish"
    RECYCLE = "recycle"
    RANK = "rank"
    METRIC = "metric"


STEP_STAGES = tuple(Stage)[1:14]
