"""Scores are equal within the error that the engines declare; a choice inside it is a near-tie."""

from dataclasses import replace

import numpy as np
import pytest
from comparison_traces import (
    column_of,
    first_step_with,
    place_of_step,
    small_lockstep_trace,
    small_trace,
    with_column,
    with_columns,
    with_element,
    with_header,
)

from kgverify import Verdict
from kgverify.comparison.compare import compare
from kgverify.comparison.equal_columns import has_equal_scores
from kgverify.comparison.result import Level
from kgverify.trace.model.columns import starts_of
from kgverify.trace.model.trace import Trace

ERROR = 0.25


def with_error(trace: Trace, error: float = ERROR) -> Trace:
    return with_header(trace, engine={"score_error": error})


@pytest.mark.parametrize("lockstep", [False, True])
@pytest.mark.parametrize(("delta", "is_same"), [(2 * ERROR, True), (-2 * ERROR, True), (2.5 * ERROR, False)])
def test_scores_agree_within_the_sum_of_both_errors(delta: float, is_same: bool, lockstep: bool):
    trace = with_error(small_lockstep_trace() if lockstep else small_trace())
    actual = with_element(trace, "resolvents.score", 30, lambda score: score + delta)
    comparison = compare(trace, actual, lockstep=lockstep)
    assert comparison.verdict is (Verdict.AGREE if is_same else Verdict.DIVERGE)
    assert comparison.level is (Level.BITS if is_same else Level.TOLERANCE)
    assert {rule.field: rule.rule for rule in comparison.equality}["resolvents.score"] == "within 0.5"


def test_without_a_declared_error_scores_are_equal_or_not():
    actual = with_element(small_trace(), "resolvents.score", 30, lambda score: np.nextafter(score, 9))
    comparison = compare(small_trace(), actual)
    assert (comparison.verdict, comparison.level) == (Verdict.DIVERGE, Level.TOLERANCE)
    rules = {rule.field: rule.rule for rule in comparison.equality}
    assert (rules["resolvents.score"], rules["steps.choice"]) == ("equal", "equal")
    assert rules["candidates.log_probability"] == "within 1e-9, relative"
    rules = {rule.field: rule.rule for rule in compare(*[with_error(small_trace())] * 2).equality}
    assert rules["steps.choice"] == "equal, unless the scores' gap is at most 1"
    assert rules["candidates.log_probability"] == "within 0.5 a step"


@pytest.mark.parametrize(("delta", "is_same"), [(0.99, True), (-0.99, True), (1.01, False), (-1.01, False)])
def test_log_probabilities_agree_within_the_errors_of_their_steps(delta: float, is_same: bool):
    trace = with_error(small_trace())
    for candidate in (0, int(np.argmax(trace.columns.candidates.num_steps))):
        bound = 2 * 2 * ERROR * int(trace.columns.candidates.num_steps[candidate])
        actual = with_element(
            trace, "candidates.log_probability", candidate, lambda value, most=bound: value + delta * most
        )
        comparison = compare(trace, actual)
        assert comparison.verdict is (Verdict.AGREE if is_same else Verdict.DIVERGE)
        assert [each.field for each in comparison.divergences] == ["candidates.log_probability"] * (not is_same)


@pytest.mark.parametrize("error", [0.0, ERROR, 1e300])
def test_scores_that_are_not_numbers_are_never_equal(error: float):
    trace = with_error(small_trace(), error)
    nan = with_element(trace, "resolvents.score", 30, lambda _: np.nan)
    for expected, actual in ((trace, nan), (nan, trace), (nan, nan)):
        comparison = compare(expected, actual)
        assert comparison.verdict is Verdict.DIVERGE
        assert comparison.divergences[0].field == "resolvents.score"


def test_equal_infinities_are_equal_and_opposite_ones_are_not():
    plus = with_element(small_trace(), "resolvents.score", 30, lambda _: np.inf)
    minus = with_element(small_trace(), "resolvents.score", 30, lambda _: -np.inf)
    assert compare(plus, plus).verdict is Verdict.AGREE
    assert compare(plus, minus).verdict is Verdict.DIVERGE


def test_scores_in_single_precision_that_round_to_the_same_have_no_difference_of_bits():
    scores = column_of(small_trace(), "resolvents.score") + 1 / 3
    double = with_error(with_column(small_trace(), "resolvents.score", scores), 1e-6)
    single = with_error(with_column(small_trace(), "resolvents.score", scores.astype(np.float32)), 1e-6)
    for expected, actual in ((double, single), (single, double)):
        comparison = compare(expected, actual)
        assert (comparison.verdict, comparison.level) == (Verdict.AGREE, None)


def near_tie(trace: Trace, gap: float, choice: int = 0) -> tuple[Trace, Trace, int]:
    """Two resolvents of a step score `gap` apart, and the actual side, to which they are nearer, takes the other.

    Returns the expected trace, in which the second is chosen, the actual one, and the step's row.
    """
    row = first_step_with(trace, 2)
    first, end = starts_of(trace.columns.steps.num_resolvents)[row : row + 2].tolist()
    scores = column_of(trace, "resolvents.score").copy()
    scores[first] = scores[first + 1] - gap
    scores[first + 2 : end] = -100.0
    expected = with_error(with_column(trace, "resolvents.score", scores))
    expected = with_element(expected, "steps.choice", row, lambda _: 1)
    shift = np.clip(gap / 2, -2 * ERROR, 2 * ERROR)
    nearer = scores.copy()
    nearer[first] += shift
    nearer[first + 1] -= shift
    actual = with_column(expected, "resolvents.score", nearer)
    return expected, with_element(actual, "steps.choice", row, lambda _: choice), row


@pytest.mark.parametrize("gap", [0.0, 2 * ERROR, 4 * ERROR, -4 * ERROR])
def test_another_choice_inside_the_error_bound_is_a_near_tie(gap: float):
    expected, actual, row = near_tie(small_trace(), gap)
    comparison = compare(expected, actual)
    assert comparison.verdict is Verdict.AGREE
    assert comparison.divergences == ()
    (tie,) = comparison.near_ties
    assert (tie.candidate, tie.step) == place_of_step(small_trace(), row)
    assert (tie.gap, tie.bound) == (abs(gap), 4 * ERROR)
    assert tie.expected != tie.actual
    assert comparison.coverage.steps < len(small_trace().columns.steps.depth)


@pytest.mark.parametrize("gap", [4.1 * ERROR, -4.1 * ERROR, np.nan])
def test_another_choice_outside_the_error_bound_is_a_divergence(gap: float):
    expected, actual, row = near_tie(small_trace(), gap)
    comparison = compare(expected, actual)
    assert comparison.verdict is Verdict.DIVERGE
    assert comparison.near_ties == ()
    (divergence,) = comparison.divergences
    assert (divergence.candidate, divergence.step) == place_of_step(small_trace(), row)
    assert divergence.stage == ("score" if np.isnan(gap) else "choose")


def test_a_choice_against_the_scores_beside_it_is_no_near_tie():
    expected, actual, row = near_tie(small_trace(), 2 * ERROR)
    scores = actual.columns.resolvents.score
    first = int(starts_of(actual.columns.steps.num_resolvents)[row])
    for higher in (np.nextafter(scores[first], np.inf), scores[first] + ERROR):
        contrary = with_element(actual, "resolvents.score", first + 1, lambda _, score=higher: score)
        (divergence,) = compare(expected, contrary).divergences
        assert divergence.stage == "choose"
    # What was rounded when it was recorded tells less.
    rounded = with_column(contrary, "resolvents.score", contrary.columns.resolvents.score.astype(np.float32))
    assert compare(expected, rounded).verdict is Verdict.AGREE


def test_exact_engines_have_no_near_ties():
    expected, actual, _ = near_tie(small_trace(), 0.0)
    exact = with_error(expected, 0.0), with_error(actual, 0.0)
    assert compare(*exact).verdict is Verdict.DIVERGE


def test_a_near_tie_in_lockstep_is_one_of_its_step():
    expected, actual, row = near_tie(small_lockstep_trace(), ERROR)
    comparison = compare(expected, actual, lockstep=True)
    assert comparison.verdict is Verdict.AGREE
    (tie,) = comparison.near_ties
    assert tie.candidate == row
    assert comparison.coverage.steps == len(small_trace().columns.steps.depth)


def without_last_resolvent(trace: Trace, row: int) -> Trace:
    """A copy in which a step, whose last resolvent is not chosen, lacks that one."""
    r = trace.columns.resolvents
    last = int(starts_of(trace.columns.steps.num_resolvents)[row + 1]) - 1
    begin, end = starts_of(r.num_atoms)[last : last + 2].tolist()
    counts = trace.columns.steps.num_resolvents.copy()
    counts[row] -= 1
    resolvents = type(r)(
        *(np.delete(column, last) for column in r[:-1]), np.delete(r.atoms, np.arange(begin, end), axis=0)
    )
    steps = trace.columns.steps._replace(num_resolvents=counts)
    return with_columns(trace, trace.columns._replace(steps=steps, resolvents=resolvents))


def test_what_follows_a_near_tie_is_another_way_and_not_compared():
    expected, actual, row = near_tie(small_trace(), ERROR)
    assert place_of_step(expected, row + 1)[0] == place_of_step(expected, row)[0]
    comparison = compare(expected, without_last_resolvent(actual, row + 1))
    assert (comparison.verdict, comparison.level) == (Verdict.AGREE, Level.BITS)
    # At equal scores not even bits differ, whatever comes after.
    expected, actual, row = near_tie(small_trace(), 0.0)
    comparison = compare(expected, without_last_resolvent(actual, row + 1))
    assert (comparison.verdict, comparison.level) == (Verdict.AGREE, None)


def test_a_near_tie_does_not_hide_another_outcome_of_the_step():
    expected, actual, row = near_tie(small_trace(), ERROR)
    actual = with_element(actual, "steps.outcome", row, lambda outcome: 1 - outcome)
    comparison = compare(expected, actual)
    assert comparison.verdict is Verdict.DIVERGE
    assert comparison.near_ties == ()


def without_scores(trace: Trace) -> Trace:
    zeros = with_column(trace, "resolvents.score", np.zeros_like(column_of(trace, "resolvents.score")))
    return replace(zeros, fields=trace.fields - {"resolvents.score"})


@pytest.mark.parametrize(("gap", "is_tie"), [(ERROR, True), (5 * ERROR, False)])
def test_a_trace_without_scores_is_held_to_the_gaps_of_the_expected_one(gap: float, is_tie: bool):
    expected, actual, _ = near_tie(small_trace(), gap)
    comparison = compare(expected, without_scores(actual))
    assert comparison.verdict is (Verdict.AGREE if is_tie else Verdict.DIVERGE)
    assert len(comparison.near_ties) == is_tie
    # Which of the two it is that the actual side takes makes no difference.
    row = int(np.flatnonzero(expected.columns.steps.choice != actual.columns.steps.choice)[0])
    swapped = [
        with_element(each, "steps.choice", row, lambda choice: 1 - choice)
        for each in (expected, without_scores(actual))
    ]
    assert len(compare(*swapped).near_ties) == is_tie
    assert "resolvents.score" in comparison.coverage.not_compared


def test_another_choice_is_never_a_near_tie_where_the_expected_trace_has_no_scores():
    expected, actual, _ = near_tie(small_trace(), 0.0)
    for lacking in (actual, without_scores(actual)):
        assert compare(without_scores(expected), lacking).verdict is Verdict.DIVERGE


def test_scores_of_two_types_are_equal_up_to_the_tolerance_and_the_bits_of_the_coarser_type():
    def judge(left: list[float], right: list[float], tolerance: float = 1e-3) -> tuple[bool, bool]:
        return has_equal_scores(np.array(left, np.float32), np.array(right, np.float64), tolerance)

    assert judge([0.5, -np.inf], [0.5, -np.inf]) == (True, False)
    assert judge([0.5], [0.5 + 1e-12]) == (True, False)
    assert judge([0.5], [0.5 + 1e-4]) == (True, True)
    assert judge([0.5], [0.6]) == (False, False)
    assert judge([0.5], [0.5, 0.5]) == (False, False)
