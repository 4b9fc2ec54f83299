"""Scores are equal within the error that the engines declare; a choice inside it is a near-tie."""

import numpy as np
import pytest
from comparison_traces import (
    column_of,
    compare,
    first_step_with,
    judge,
    place_of_step,
    small_lockstep_trace,
    small_trace,
    starts_of,
    with_column,
    with_element,
    with_header,
    with_score_error,
    without_columns,
    without_resolvent,
)
from hypothesis import given
from hypothesis import strategies as st

from kgverify import Trace, Verdict
from kgverify.program.outcomes import GoalKind

ERROR = 0.25


def with_error(trace: Trace, error: float = ERROR) -> Trace:
    return with_score_error(trace, error)


VALUES = st.sampled_from([-np.inf, -1.0, -1.0 - 2.0**-40, 0.0, 2.0**-30, 1.0, np.inf, np.nan])


def is_close(x: float, y: float, tolerance: float) -> bool:
    return x == y or bool(np.isfinite(x) and np.isfinite(y) and abs(x - y) <= tolerance)


@given(VALUES, VALUES, st.sampled_from([0.0, 2.0**-21, 1.0]), st.booleans(), st.booleans())
def test_scores_are_equal_within_the_tolerance_and_then_differ_in_bits_or_not(
    a: float, b: float, error: float, is_single: bool, is_other_single: bool
):
    sides = []
    for value, kind in ((a, is_single), (b, is_other_single)):
        scores = np.zeros_like(column_of(small_trace(), "resolvents.score"))
        scores[30] = value
        scored = with_column(small_trace(), "resolvents.score", scores.astype(np.float32 if kind else np.float64))
        sides.append(with_error(scored, error))
    x, y = (float(column_of(side, "resolvents.score")[30]) for side in sides)
    coarse = np.float32 if is_single or is_other_single else np.float64
    has_other_bits = not np.array_equal(np.array(x, coarse), np.array(y, coarse))
    level = compare(*sides).level
    assert level == (("bits" if has_other_bits else None) if is_close(x, y, 2 * error) else "tolerance")


@given(VALUES, st.sampled_from([0.0, 1e-10, 5e-4, 5.0]), st.sampled_from([0.0, 2.0**-33]), st.sampled_from([-1, 1e6]))
def test_sums_are_equal_within_the_errors_of_their_steps_and_a_billionth_of_their_size(
    a: float, apart: float, error: float, factor: float
):
    trace = with_error(small_trace(), error)
    a *= factor
    for candidate in (0, int(np.argmax(trace.columns.candidates.num_steps))):
        name, num = "candidates.log_probability", int(trace.columns.candidates.num_steps[candidate])
        values = column_of(trace, name).copy()
        values[candidate] = a
        expected = with_column(trace, name, values)
        values = values.copy()
        values[candidate] = a - apart
        allowed = 4 * error * max(1, num) + 1e-9 * max(1.0, abs(a) if np.isfinite(a) else 0.0)
        found = compare(expected, with_column(trace, name, values)).divergences
        assert [each.candidate for each in found] == ([] if is_close(a, a - apart, allowed) else [candidate])


def test_without_a_declared_error_scores_are_equal_or_not():
    actual = with_element(small_trace(), "resolvents.score", 30, lambda score: np.nextafter(score, 9))
    comparison = compare(small_trace(), actual)
    assert (comparison.verdict, comparison.level) == (Verdict.DIVERGE, "tolerance")
    rules = {rule.field: rule.rule for rule in comparison.equality}
    assert (rules["resolvents.score"], rules["steps.choice"]) == ("equal", "equal")
    assert rules["candidates.log_probability"] == "within 1e-9, relative"
    rules = {rule.field: rule.rule for rule in compare(*[with_error(small_trace())] * 2).equality}
    assert rules["steps.choice"] == "equal, unless the scores' gap is at most 1"
    assert rules["candidates.log_probability"] == "within 0.5 a step"


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


@pytest.mark.parametrize(
    ("gap", "is_tie"),
    [
        *((gap * ERROR, True) for gap in (0, 2, 4, -4)),
        *((gap * ERROR, False) for gap in (4.1, -4.1, np.nan)),
    ],
)
def test_another_choice_inside_the_error_bound_alone_is_a_near_tie(gap: float, is_tie: bool):
    expected, actual, row = near_tie(small_trace(), gap)
    comparison = compare(expected, actual)
    assert comparison.verdict is (Verdict.AGREE if is_tie else Verdict.DIVERGE)
    (found,) = comparison.near_ties if is_tie else comparison.divergences
    assert len(comparison.near_ties) + len(comparison.divergences) == 1
    assert (found.candidate, found.step) == place_of_step(small_trace(), row)
    assert found.expected != found.actual
    if is_tie:
        assert (found.gap, found.bound) == (abs(gap), 4 * ERROR)
        assert comparison.coverage.steps < len(small_trace().columns.steps.depth)
    else:
        assert found.stage == ("score" if np.isnan(gap) else "choose")
    # Exact engines have none, and none hides another outcome of the step.
    exact = with_error(expected, 0.0), with_error(actual, 0.0)
    other = with_element(actual, "steps.outcome", row, lambda outcome: 1 - outcome)
    for pair in (exact, (expected, other)):
        comparison = compare(*pair)
        assert (comparison.verdict, comparison.near_ties) == (Verdict.DIVERGE, ())


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


def test_what_follows_a_near_tie_is_another_way_and_not_compared():
    expected, actual, row = near_tie(small_trace(), ERROR)
    assert place_of_step(expected, row + 1)[0] == place_of_step(expected, row)[0]
    comparison = compare(expected, without_resolvent(actual, row + 1))
    assert (comparison.verdict, comparison.level) == (Verdict.AGREE, "bits")
    # At equal scores not even bits differ, whatever comes after.
    expected, actual, row = near_tie(small_trace(), 0.0)
    comparison = compare(expected, without_resolvent(actual, row + 1))
    assert (comparison.verdict, comparison.level) == (Verdict.AGREE, None)


def without_scores(trace: Trace) -> Trace:
    return without_columns(trace, "resolvents.score")


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


def test_in_lockstep_the_scores_of_a_divergent_step_are_not_counted_as_equal():
    expected = with_error(small_lockstep_trace())
    row = int(np.flatnonzero((expected.columns.steps.depth > 0) & (expected.columns.steps.num_resolvents > 0))[0])
    first = int(starts_of(expected.columns.steps.num_resolvents)[row])
    near = with_element(expected, "resolvents.score", first, lambda score: score + ERROR)
    wrong = with_element(near, "steps.dropped_atoms", row, lambda num: num + 1)
    for actual, num in ((near, 1), (wrong, 0)):
        comparison = compare(expected, actual, lockstep=True)
        assert (len(comparison.divergences), comparison.rounding.num_differing) == (1 - num, num)


ULP = 2.0**-23
NOISE = 1 + 8 * ULP * np.resize([-1.0, 0.5, 1.0], len(small_trace().columns.resolvents.score))
OTHERS = np.where(column_of(small_trace(), "resolvents.kind") == GoalKind.GOAL, 1.1, 64.3)
"""Some engines give terminal actions scores of another size."""


@pytest.mark.parametrize(
    ("precision", "expected", "actual", "is_rounding"),
    [
        ("float64", lambda x: x, lambda x: np.trunc(x * 1000) / 1000, False),
        ("float64", lambda x: x * 1.1, lambda x: x * 1.1 * NOISE, False),
        ("float64", lambda x: x * 1.1, lambda x: x * 1.1 * (1 + (NOISE - 1) * 2.0**-29), True),
        ("float64", lambda x: np.float32(x * 1.1), lambda x: np.float32(x * 1.1 * NOISE), True),
        (
            "float64",
            lambda x: np.float32(x * 1.1).astype(float),
            lambda x: np.float32(x * 1.1 * NOISE).astype(float),
            True,
        ),
        ("float32", lambda x: x * 1.1, lambda x: x * 1.1 * NOISE, True),
        ("float32", lambda x: x * 1.1, lambda x: x * 1.1 * NOISE + 1e-3 * (OTHERS < 2), False),
        ("float32", lambda x: x * 1.1, lambda x: np.float16(x * 1.1).astype(float), False),
    ],
)
def test_recorded_scores_may_be_off_by_roundings_of_their_own_size_and_type(precision, expected, actual, is_rounding):
    name = "resolvents.score"
    base = without_columns(small_trace(), "candidates.log_probability")
    base = with_column(base, name, np.minimum(column_of(base, name), -1.0) * OTHERS / 1.1)
    sides = [
        with_header(
            with_column(base, name, change(column_of(base, name))), engine={"name": role, "precision": precision}
        )
        for role, change in (("left", expected), ("right", actual))
    ]
    report = judge(*sides)
    assert bool(report.divergences) is not is_rounding, report
    assert all(
        f"roundings of {each}" in " ".join(report.rounding.evidence) for each in [precision] * (precision == "float32")
    )
