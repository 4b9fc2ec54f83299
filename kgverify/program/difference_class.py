"""The class of a difference between two steps."""

from enum import StrEnum


class DifferenceClass(StrEnum):
    """The class of a difference.

    missing, extra: one side lacks something; reordered; renamed: different variable names; substituted: the same clause
    gave different atoms; stale: a value of an earlier step; foreign: a value of another derivation; rounding: within the
    arithmetic's error; tie: a different argmax at equal scores; content: something differs, and more is not
    known; limit: the limits dropped different resolvents; outcome, rank, metric: each of these alone; number: a score or a
    sum beyond its tolerance; proof_lost, false_proof: TRUE on one side only; unsound: no clause of the program explains a
    resolvent; malformed: a resolvent is not a goal; unclassified: a defect of kgverify.
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
    UNCLASSIFIED = "unclassified"
