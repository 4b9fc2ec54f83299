"""What a comparison found, as data; turning it into text is the report's work."""

from enum import StrEnum
from typing import TypeAlias

import msgspec


class Verdict(StrEnum):
    """The verdict of a comparison: AGREE if all was compared and is equal, INCONCLUSIVE if no decision was possible.

    Example:
        >>> import kgverify as kv
        >>> kv.verify("countries", "reference", queries=1, corruptions=1).verdict is kv.Verdict.AGREE
        True
    """

    AGREE = "AGREE"
    DIVERGE = "DIVERGE"
    INCONCLUSIVE = "INCONCLUSIVE"


class Level(StrEnum):
    """How far a difference reaches, mildest first.

    bits: numbers differ within the tolerance; tolerance: beyond it; order: the same resolvents in another order, or by
    other clauses; renaming: another goal, other resolvents or counts, but the same choice; choice: another resolvent
    chosen; outcome, rank, metric: each of these differs.
    """

    BITS = "bits"
    TOLERANCE = "tolerance"
    ORDER = "order"
    RENAMING = "renaming"
    CHOICE = "choice"
    OUTCOME = "outcome"
    RANK = "rank"
    METRIC = "metric"


def highest_level(levels: "list[Level]") -> Level | None:
    """The level that reaches furthest; None of none."""
    order = list(Level)
    return max(levels, key=order.index, default=None)


class DifferenceClass(StrEnum):
    """What kind of difference it is.

    missing, extra: something that one side lacks; reordered; renamed: other variable names; substituted: the same clause
    gave other atoms; stale: a value of an earlier step; foreign: a value of another derivation; rounding: within the
    arithmetic's error; tie: another argmax at equal scores; content: the steps' digests differ, and more is not known;
    limit: what the limits dropped; outcome, rank, metric: each of these alone; number: a score or a sum beyond its
    tolerance; unclassified: a defect of kgverify.
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
    UNCLASSIFIED = "unclassified"


Value: TypeAlias = str | int | float | list[str]
"""A value as a person reads it: text, a number, or a list of which only what differs is shown."""


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """The first difference of a candidate (free-running), or a difference of one step (lockstep).

    candidate:   row in the expected trace; in the actual one where the expected one lacks it
    step:        step of the derivation, from 0; -1 where the difference is of no step
    stage:       a `Stage`
    is_replayed: whether the stage was found by replaying the step in both engines, else read off the traces
    later_steps: steps of the candidate after this one, which are its consequences
    kind:        what kind of difference it is, with the evidence for it and the confidence in it, 0 to 1
    cause:       index of the `Cause` it belongs to; -1 before causes were formed
    """

    candidate: int
    atom: str
    query: int
    side: str
    step: int
    stage: str
    field: str
    level: Level
    expected: Value
    actual: Value
    goal: str = ""
    is_replayed: bool = False
    later_steps: int = 0
    kind: DifferenceClass = DifferenceClass.UNCLASSIFIED
    evidence: str = ""
    confidence: float = 0.0
    cause: int = -1


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """Divergences with one signature: the same stage, the same kind, in the same situation.

    situation:     what the divergent steps have in common, e.g. "selected atom with a bound first argument"
    first:         index of its first divergence in the report
    num_later:     later differences that follow from these divergences
    """

    stage: str
    kind: DifferenceClass
    situation: str
    num_candidates: int
    num_queries: int
    num_divergences: int
    num_later: int
    first: int


class Share(msgspec.Struct, frozen=True):
    """A cause's part of the loss.

    cause:    index of the cause; -1 stands for rounding at near-ties, which is nobody's fault
    share:    its Shapley value, in units of the metric; the shares add up to the loss
    repaired: the actual metric if this cause alone were repaired
    """

    cause: int
    share: float
    repaired: float


class Attribution(msgspec.Struct, frozen=True, kw_only=True):
    """The loss of a metric, split over the causes.

    method: `exact` (every subset of causes) or `sampled`; error: of each sampled share, one standard error
    """

    metric: str
    expected: float
    actual: float
    shares: tuple[Share, ...]
    method: str = "exact"
    error: float = 0.0


class NearTie(msgspec.Struct, frozen=True):
    """A step whose choices differ while the scores' gap is inside the error bound: not a divergence.

    compared_after: steps of the candidate compared after it, from the expected choice
    """

    candidate: int
    atom: str
    step: int
    gap: float
    bound: float
    expected: str
    actual: str
    compared_after: int = 0


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """What was compared, and what was not.

    steps:        of a candidate that differs, those up to its first difference
    fields:       columns compared
    not_compared: columns that one of the traces lacks
    """

    candidates: int
    steps: int
    resolvents: int
    fields: tuple[str, ...]
    not_compared: tuple[str, ...] = ()
    candidates_expected: int = 0
    candidates_actual: int = 0
    steps_after_near_ties: int = 0


class FieldRule(msgspec.Struct, frozen=True):
    """What counts as equal in a field."""

    field: str
    rule: str


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The result of comparing two traces.

    reasons:     why the verdict is INCONCLUSIVE
    level:       how far the differences reach; None where there are none, not even of bits
    divergences: in the order of candidates; free-running, one for each candidate that diverges
    """

    verdict: Verdict
    coverage: Coverage
    divergences: tuple[Divergence, ...] = ()
    near_ties: tuple[NearTie, ...] = ()
    level: Level | None = None
    reasons: tuple[str, ...] = ()
    equality: tuple[FieldRule, ...] = ()
    notes: tuple[str, ...] = ()
