"""The result of a comparison, as data. `kgverify.report` turns it into text."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Final, TypeAlias, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.codes import Code, Coded
from kgverify.program.outcomes import DifferenceClass

DIGEST: Final = "digests.sequence"
"""The field in which steps are compared if one of the traces keeps no goals."""

NOTHING_MORE: Final = ["nothing more"]
"""The value of a side that lacks only what the other one lists."""

NO_CANDIDATE: Final = "no such candidate"
"""The value shown for a side that lacks a candidate."""

ROLES: Final = ("expected", "actual")
"""The two sides of a comparison."""

SCORES_BEFORE: Final = "scores of the call before"
"""The situation of wrong scores that are those of an earlier call."""


class Verdict(StrEnum):
    """The verdict of a comparison: AGREE if everything was compared and is equal, INCONCLUSIVE if no decision was possible.

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

    bits: numbers differ within the tolerance; tolerance: numbers differ by more; order: the same resolvents in a different
    order, or made by different clauses, or by another process; renaming: different goals, resolvents or counts, but the same
    choice; choice: a different choice; outcome, rank, metric: a different outcome, rank or metric.
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
"""The classes that are reported before all others."""


Value: TypeAlias = str | int | float | list[str]
"""A value in readable form: text, a number, or a list of the items that differ."""


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """The first difference of a candidate (free-running), or a difference of one step (lockstep).

    candidate:   row in the expected trace, or in the actual trace if the expected trace lacks the candidate
    step:        step of the derivation, from 0; -1 if the difference is not in a step
    query, side: those of the candidate; -1 and `none` for a kind of problem without queries
    stage:       a `Stage`
    is_replayed: whether the stage was found by replaying the step in both engines; if not, it was inferred from the traces
    is_assumed:  whether its stage and class were neither replayed nor inferred, but taken from similar divergences
    later_steps: steps of the candidate after this one, which were not compared
    kind:        the class of the difference, with the evidence for it and the confidence in it, 0 to 1
    rank:        the process that computed it, or should have, if several recorded the traces; -1 if unknown
    cause:       index of its `Cause`; -1 before causes were formed
    other_cause: index of a second cause that shows in the same step; -1 without a second cause
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
    rank: int = -1
    cause: int = -1
    other_cause: int = -1


def count_candidates(divergences: Iterable[Divergence]) -> int:
    """Return the number of different candidates; those that the expected trace lacks have numbers of their own."""
    return len({(each.expected == NO_CANDIDATE, each.candidate) for each in divergences})


class FeatureValue(msgspec.Struct, frozen=True):
    """The numbers of instances with a value of a feature, or in a range of values: those that went wrong, and the others."""

    value: float
    num_wrong: int
    num_right: int


class Experiment(msgspec.Struct, frozen=True, kw_only=True):
    """The test of a condition on problems constructed for it, on which both engines ran.

    verdict:       `confirmed`, `refuted` or `not testable`
    reason:        the reason why it is not testable; empty otherwise
    num_tried:     the number of instances in the constructed problems, some that meet the condition and some that do not
    num_predicted: the number of instances that behaved as the condition predicts
    pair:          the smallest problems on either side of the boundary, in words: one that goes wrong, and one that does not
    """

    verdict: str
    reason: str = ""
    num_tried: int = 0
    num_predicted: int = 0
    pair: tuple[str, ...] = ()


class TriedTest(msgspec.Struct, frozen=True):
    """A test of a single feature that was tried, in words.

    precision, recall: those of the test if it were the condition
    """

    words: str
    precision: float
    recall: float


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """The condition under which a cause goes wrong: what distinguishes its instances from those that did not go wrong.

    sentence:         the condition in words, or why none is stated
    unit:             the kind of the instances: `fact`, `rule`, `resolvent`, `step`, `level` or `candidate`
    tests:            the tests in words; all must hold, or, of two conditions, all tests of one. Empty if every instance went
                      wrong, or no condition was found
    features:         the names of the features that the tests use
    num_conditions:   1, or 2 if either of two conditions must hold: there are two causes in one stage
    is_exact:         whether it holds for every instance that went wrong and for no other
    is_partial:       whether it only identifies the steps that go wrong, not what goes wrong in them
    is_cut:           whether the search for exact conditions ended before all were tried
    is_sample:        whether some instances of the run were left out
    num_wrong, num_right: the numbers of examined instances; large causes are thinned out
    wrong_inside, right_inside: how many of them meet the condition
    chance:           a bound on the probability of this separation by chance, corrected for the number of conditions tried
    num_tried:        the number of possible conditions that are as simple as this one
    others:           further exact conditions of the same instances, the simplest first
    counter_examples: the first instances that the condition does not explain
    values:           the distribution of the first feature
    more_values:      the distributions of the other features
    tried:            the best single test of each feature, the best first
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
    is_sample: bool = False
    num_wrong: int = 0
    num_right: int = 0
    wrong_inside: int = 0
    right_inside: int = 0
    chance: float = 1.0
    num_tried: int = 0
    others: tuple[str, ...] = ()
    counter_examples: tuple[str, ...] = ()
    values: tuple[FeatureValue, ...] = ()
    more_values: tuple[tuple[FeatureValue, ...], ...] = ()
    tried: tuple[TriedTest, ...] = ()
    experiment: Experiment | None = None


class Repair(msgspec.Struct, frozen=True, kw_only=True):
    """An intervention: the expected step took the place of wrong ones, and the engine under test went on by itself.

    num_tried:  the candidates in which this was tried: the engine repeats their wrong step from the expected goal
    num_once:   those that end as expected, in equal steps, after their first wrong step alone was replaced
    num_healed: those that do so after every step was replaced that went wrong in the same stage and field
    num_steps:  the steps replaced for it
    elsewhere:  where a candidate then first goes wrong in another way; empty if none does
    metric:     the actual metric measured with these endings; None unless this was tried in every candidate of the
                cause, and both sides have ranks
    """

    num_tried: int
    num_once: int
    num_healed: int
    num_steps: int
    elsewhere: str = ""
    metric: float | None = None


class SourceCode(msgspec.Struct, frozen=True):
    """The code of a stage in the engine under test.

    file: relative to the folder in which the comparison ran, or else as it is imported
    name: the name of the function
    text: its first lines; last_line: the number of its last line
    """

    file: str
    line: int
    name: str
    text: tuple[str, ...]
    last_line: int = 0


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """Divergences with the same stage, class and situation.

    code:          the stable code of `kind`: docs/verdicts.md has a section for each
    situation:     a property that the divergent steps share, e.g. "selected atom with a bound first argument"
    first:         index of its first divergence in the report
    num_assumed:   the divergences whose stage and class were neither replayed nor inferred: see `is_assumed`
    num_later:     steps of the candidates after these divergences, which were not compared
    condition:     the condition under which it goes wrong, in words; empty if no condition was sought
    when:          the same condition as data; None if no condition was sought
    repair:        what the expected step in place of the wrong ones gave; None if no such intervention was possible
    source:        the engine's code of the stage; None if it is unknown
    reproduce:     the command that writes a minimal problem for it, and a similar one on which both sides agree, for the
                   run saved in RUN_DIR; empty unless kgverify ran both engines
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
    repair: Repair | None = None
    source: SourceCode | None = None
    reproduce: str = ""
    code: str = ""


class Share(msgspec.Struct, frozen=True):
    """A cause's share of the loss.

    cause:    index of the cause; -1 stands for rounding at near-ties, which is not a fault
    share:    its Shapley value, in units of the metric; the shares add up to the loss
    repaired: the actual metric if only this cause were repaired
    """

    cause: int
    share: float
    repaired: float


class Attribution(msgspec.Struct, frozen=True, kw_only=True):
    """The loss of a metric, split over the causes.

    method: `exact` (every subset of causes) or `sampled`; error: one standard error of each sampled share
    basis:  `engines` if both pipelines rank every mixture of candidates; `traces` if no engine was used: a repair takes the
            candidates of a cause from the expected trace as recorded, and ranks them by the recognised rules
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
    also:              other known rules that also explain every rank; the simplest rule is used
    is_recorded:       whether the trace holds ranks; if not, they were computed by this rule
    num_unexplained:   the number of ranks that no known rule explains together with the rest
    num_known_triples: the known true triples among the candidates, except the query's: 0 if they are filtered
    remarks:           further remarks on unusual ranked candidates, such as a side without ranks
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
    """A step whose choices differ, but whose scores differ by no more than the error bound. It is not a divergence.

    compared_after: steps of the candidate that were compared after it, starting from the expected choice
    """

    candidate: int
    atom: str
    step: int
    gap: float
    bound: float
    expected: str
    actual: str
    compared_after: int = 0
    code: str = Code.NEAR_TIE


class Benign(msgspec.Struct, frozen=True, kw_only=True):
    """Steps that differ, but are equal up to the differences that the user declared as benign. They are not divergences.

    kind:       `names`, `order` or `duplicates`; a step that is equal only up to several kinds belongs to each of them
    code:       the stable code of the kind
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
    code: str = ""


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """The extent of a comparison.

    steps:        the compared steps; for a candidate that differs, the steps up to its first difference
    fields:       the compared columns
    not_compared: the columns that one of the traces lacks
    rankings:     the compared ranks or metrics, if nothing else is compared
    """

    candidates: int
    steps: int
    resolvents: int
    fields: tuple[str, ...]
    not_compared: tuple[str, ...] = ()
    candidates_expected: int = 0
    candidates_actual: int = 0
    steps_after_near_ties: int = 0
    rankings: int = 0


class FieldRule(msgspec.Struct, frozen=True):
    """The rule of equality of a field."""

    field: str
    rule: str


class SelfTest(msgspec.Struct, frozen=True):
    """The self-test of a comparison: a change was planted in each compared column of this run, and all were reported.

    columns: the columns in which a change was planted, and the rankings
    """

    columns: int


class Rounding(msgspec.Struct, frozen=True, kw_only=True):
    """The rounding of scores: the bound up to which two scores count as equal, and the differences seen within it.

    bound:         the largest difference between two scores that count as equal, in nats
    ulps:          the bound in units in the last place, at the median size of a score; 0 if no score differs in bits
    float_type:    the coarser float type of the two sides; empty if no score differs in bits
    evidence:      the source of the bound of each side, in words
    num_differing: scores that differ in bits but count as equal
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
    divergences: divergences in the order of candidates; in a free-running comparison, one for each diverging candidate
    modulo:      the kinds of differences that count as benign
    benign:      the benign differences, by kind
    rounding:    the rounding of scores; None if scores are not compared
    self_test:   the self-test that the comparison passed before the verdict was given; None if not yet run
    """

    verdict: Verdict
    coverage: Coverage
    divergences: tuple[Divergence, ...] = ()
    near_ties: tuple[NearTie, ...] = ()
    level: Level | None = None
    reasons: tuple[Coded, ...] = ()
    equality: tuple[FieldRule, ...] = ()
    notes: tuple[str, ...] = ()
    self_test: SelfTest | None = None
    modulo: tuple[str, ...] = ()
    benign: tuple[Benign, ...] = ()
    rounding: Rounding | None = None


_Located = TypeVar("_Located", Divergence, NearTie)


def move(each: _Located, rows: NDArray[np.int64]) -> _Located:
    """Return a divergence or near-tie of a block, given the rows of the block's candidates in the whole trace."""
    return msgspec.structs.replace(each, candidate=int(rows[each.candidate]))
