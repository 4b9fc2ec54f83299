"""The result of a comparison, as data. `kgverify.report` turns it into text."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Final, TypeAlias

import msgspec

from kgverify.program.outcomes import DifferenceClass

DIGEST: Final = "digests.sequence"
"""The field in which steps are compared if one of the traces keeps no goals."""

NO_CANDIDATE: Final = "no such candidate"
"""The value of a side that lacks a candidate."""

ROLES: Final = ("expected", "actual")
"""The two sides of a comparison."""

SCORES_BEFORE: Final = "scores of the call before"
"""The situation of wrong scores that are those of an earlier call."""


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
    """The level that a difference reaches, mildest first.

    bits: numbers differ within the tolerance; tolerance: beyond it; order: the same resolvents in a different order, or
    made by different clauses; renaming: different goals, resolvents or counts, but the same choice; choice: a different
    choice; outcome, rank, metric: each of these differs.
    """

    BITS = "bits"
    TOLERANCE = "tolerance"
    ORDER = "order"
    RENAMING = "renaming"
    CHOICE = "choice"
    OUTCOME = "outcome"
    RANK = "rank"
    METRIC = "metric"


def highest_level(levels: Iterable[Level | None]) -> Level | None:
    """Return the most severe level, or None if there are no levels."""
    return max(filter(None, levels), key=list(Level).index, default=None)


PROOF_CLASSES: Final = frozenset({DifferenceClass.PROOF_LOST, DifferenceClass.FALSE_PROOF})
"""The classes that are named before all others."""


Value: TypeAlias = str | int | float | list[str]
"""A value for people to read: text, a number, or a list of the items that differ."""


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """The first difference of a candidate (free-running), or a difference of one step (lockstep).

    candidate:   row in the expected trace, or in the actual one if the expected one lacks the candidate
    step:        step of the derivation, from 0; -1 if the difference is not in a step
    stage:       a `Stage`
    is_replayed: whether the stage was found by replaying the step in both engines; else it was inferred from the traces
    is_assumed:  whether its stage and class were neither replayed nor inferred, but are those of others that differ alike
    later_steps: steps of the candidate after this one, which are its consequences
    kind:        the class of the difference, with the evidence for it and the confidence in it, 0 to 1
    cause:       index of the `Cause` it belongs to; -1 before causes were formed
    other_cause: index of a second cause that goes wrong at the same place; -1 without one
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
    is_assumed: bool = False
    later_steps: int = 0
    kind: DifferenceClass = DifferenceClass.UNCLASSIFIED
    evidence: str = ""
    confidence: float = 0.0
    cause: int = -1
    other_cause: int = -1


class FeatureValue(msgspec.Struct, frozen=True):
    """The instances that have a value of a feature, or one from it to the next: those that went wrong, and the others."""

    value: float
    num_wrong: int
    num_right: int


class Experiment(msgspec.Struct, frozen=True, kw_only=True):
    """The test of a condition on problems that were constructed for it, on which both engines ran.

    verdict:       `confirmed`, `refuted` or `not testable`
    reason:        the reason why it is not testable; empty otherwise
    num_tried:     the instances of the constructed problems, of both classes by the condition
    num_predicted: those that went as the condition says
    pair:          the smallest problems on either side of the boundary, in words: one that goes wrong, and one that does not
    """

    verdict: str
    reason: str = ""
    num_tried: int = 0
    num_predicted: int = 0
    pair: tuple[str, ...] = ()


class TriedTest(msgspec.Struct, frozen=True):
    """A test of one feature that was tried, in words.

    precision, recall: as if it were the condition
    """

    words: str
    precision: float
    recall: float


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """The condition under which a cause goes wrong: what distinguishes its instances from those that did not go wrong.

    sentence:         the condition in words, or why none is stated
    unit:             what the instances are: `fact`, `rule`, `resolvent`, `step` or `candidate`
    tests:            the tests, all of which hold, in words, or those of one and of another condition; empty if every
                      instance went wrong, or no condition was found
    features:         the features that they use, by name
    num_conditions:   1, or 2 where one condition or the other holds: two causes in one stage
    is_exact:         whether it holds for every instance that went wrong and for no other
    is_partial:       whether it tells apart the steps that go wrong, and not what goes wrong in them
    is_cut:           whether the search for exact conditions ended before all were tried
    num_wrong, num_right: the instances looked at; large causes are thinned out
    wrong_inside, right_inside: those of them for which the condition holds
    chance:           a bound on the probability that chance separates them so, corrected for the number of conditions tried
    num_tried:        conditions as simple as this one that could have been stated
    others:           further exact conditions of the same instances, the next simplest first
    counter_examples: the first instances that the condition does not explain
    values:           the distribution of the first feature
    tried:            the best test of each feature alone, the best ones first
    experiment:       its test on constructed problems; None if no engine could be asked
    """

    sentence: str
    unit: str
    tests: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    num_conditions: int = 1
    is_exact: bool = False
    is_partial: bool = False
    is_cut: bool = False
    num_wrong: int = 0
    num_right: int = 0
    wrong_inside: int = 0
    right_inside: int = 0
    chance: float = 1.0
    num_tried: int = 0
    others: tuple[str, ...] = ()
    counter_examples: tuple[str, ...] = ()
    values: tuple[FeatureValue, ...] = ()
    tried: tuple[TriedTest, ...] = ()
    experiment: Experiment | None = None


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """Divergences with one signature: the same stage, the same kind, in the same situation.

    situation:     a property that the divergent steps share, e.g. "selected atom with a bound first argument"
    first:         index of its first divergence in the report
    num_assumed:   the divergences of which neither the stage nor the class was replayed or inferred: see `is_assumed`
    num_later:     later differences that follow from these divergences
    condition:     the condition under which it goes wrong, in words; empty if none was sought
    when:          the same as data; None if none was sought
    reproduce:     the command that writes a minimal problem of it, and one like it on which both sides agree, for the run
                   saved in RUN_DIR; empty unless kgverify has run both engines
    """

    stage: str
    kind: DifferenceClass
    situation: str
    num_candidates: int
    num_queries: int
    num_divergences: int
    num_later: int
    first: int
    condition: str = ""
    num_assumed: int = 0
    when: Condition | None = None
    reproduce: str = ""


class Share(msgspec.Struct, frozen=True):
    """A cause's share of the loss.

    cause:    index of the cause; -1 stands for rounding at near-ties, which is not a fault
    share:    its Shapley value, in units of the metric; the shares add up to the loss
    repaired: the actual metric if this cause alone were repaired
    """

    cause: int
    share: float
    repaired: float


class Attribution(msgspec.Struct, frozen=True, kw_only=True):
    """The loss of a metric, split over the causes.

    method: `exact` (every subset of causes) or `sampled`; error: one standard error of each sampled share
    basis:  `engines` if both pipelines rank every mixture of candidates; `traces` if no engine was asked: a repair takes the
            candidates of a cause from the expected trace as recorded, and ranks by the rules recognised
    """

    metric: str
    expected: float
    actual: float
    shares: tuple[Share, ...]
    method: str = "exact"
    error: float = 0.0
    basis: str = "engines"


class RecognisedRule(msgspec.Struct, frozen=True, kw_only=True):
    """The rule by which a recorded trace was ranked, found by ranking its candidates again.

    rule:              in words; the closest known rule if some ranks are unexplained, and the rule itself is unknown
    also:              other known rules that explain every rank as well; the simplest is used
    is_recorded:       whether the trace holds ranks; if not, they were computed by this rule
    num_unexplained:   the ranks that no known rule explains together with the others
    num_known_triples: known true triples other than the query's among the candidates: 0 if they are filtered
    remarks:           what else is unusual about the candidates that are ranked, such as a side without ranks
    """

    rule: str
    also: tuple[str, ...] = ()
    is_recorded: bool = True
    num_unexplained: int = 0
    num_known_triples: int = 0
    remarks: tuple[str, ...] = ()


class RankingRules(msgspec.Struct, frozen=True, kw_only=True):
    """The ranking rules of two recorded traces. truth: how the true triples were found among the candidates."""

    expected: RecognisedRule
    actual: RecognisedRule
    truth: str = ""


class NearTie(msgspec.Struct, frozen=True):
    """A step whose choices differ while the gap of their scores is inside the error bound. It is not a divergence.

    compared_after: steps of the candidate compared after it, starting from the expected choice
    """

    candidate: int
    atom: str
    step: int
    gap: float
    bound: float
    expected: str
    actual: str
    compared_after: int = 0


class Benign(msgspec.Struct, frozen=True, kw_only=True):
    """Steps that differ, and that are equal up to what the user declared: not divergences.

    kind:       `names`, `order` or `duplicates`; a step that takes several kinds to be equal belongs to each of them
    candidate, atom, step, field, expected, actual: of the first such step, as recorded
    """

    kind: str
    num_steps: int = 0
    num_candidates: int = 0
    candidate: int
    atom: str
    step: int
    field: str
    expected: Value
    actual: Value


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """The extent of a comparison.

    steps:        steps compared; of a candidate that differs, those up to its first difference
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
    """The rule of equality of a field."""

    field: str
    rule: str


class SelfTest(msgspec.Struct, frozen=True):
    """The self-test of a comparison: a change planted in each compared column of this run, all of which it reported.

    columns: columns in which a change was planted, and the rankings
    """

    columns: int


class Rounding(msgspec.Struct, frozen=True, kw_only=True):
    """The rounding of scores: the bound below which two scores count as equal, and the differences seen inside of it.

    bound:         the largest difference of two scores that counts as equal, in nats
    ulps:          the same in units in the last place, at the median size of a score; 0 if no score differs in bits
    float_type:    the coarser float type of the two sides; empty if no score differs in bits
    evidence:      the source of the bound of each side, in words
    num_differing: scores that differ in bits and count as equal
    largest:       the largest difference among them, in nats
    in_words:      these figures in a sentence; empty if no score differs in bits
    """

    bound: float
    ulps: float = 0.0
    float_type: str = ""
    evidence: tuple[str, ...] = ()
    num_differing: int = 0
    largest: float = 0.0
    in_words: str = ""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The result of comparing two traces.

    reasons:     why the verdict is INCONCLUSIVE
    level:       the most severe level; None if nothing differs, not even in bits
    divergences: divergences in the order of candidates; free-running, one for each candidate that diverges
    modulo:      the kinds of differences that count as benign
    benign:      the benign differences, by kind
    rounding:    the rounding of scores; None if scores are not compared
    self_test:   the self-test that was passed before the verdict was given; None before
    """

    verdict: Verdict
    coverage: Coverage
    divergences: tuple[Divergence, ...] = ()
    near_ties: tuple[NearTie, ...] = ()
    level: Level | None = None
    reasons: tuple[str, ...] = ()
    equality: tuple[FieldRule, ...] = ()
    notes: tuple[str, ...] = ()
    self_test: SelfTest | None = None
    modulo: tuple[str, ...] = ()
    benign: tuple[Benign, ...] = ()
    rounding: Rounding | None = None
