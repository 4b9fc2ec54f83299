"""Ranks that differ: what rounding alone can do, what it cannot, and what is said of it."""

from dataclasses import replace

import numpy as np
import pytest
from comparison_traces import column_of, small_trace, with_column, with_element, with_header, with_rankings

from kgverify import Verdict
from kgverify.comparison.compare import compare
from kgverify.comparison.rankings import compare_rankings, mean_reciprocal_rank
from kgverify.comparison.result import Comparison, Level
from kgverify.program.outcomes import Outcome
from kgverify.trace.model.columns import Rankings
from kgverify.trace.model.trace import Trace

MARGIN = 0.3
"""The error bound of a gap of two log-probabilities in the traces of `ranked`, nats."""
VALUES = (-1.0, -1.2, -2.0, -3.0, -4.0, -5.0)


def ranked(values: tuple[float, ...], rank: int, *, outcomes: tuple[int, ...] = (Outcome.PROVED,) * 6) -> Trace:
    """A trace in which the candidates of the first query's head side have these log-probabilities, and this rank."""
    trace = small_trace()
    candidates = trace.columns.candidates
    rows = np.flatnonzero((candidates.query == 0) & (candidates.side == 0))
    most_steps = int(candidates.num_steps[rows].max())
    for name, wanted in (("log_probability", values), ("outcome", outcomes)):
        column = column_of(trace, f"candidates.{name}").copy()
        column[rows] = wanted
        trace = with_column(trace, f"candidates.{name}", column)
    trace = with_header(trace, engine={"score_error": MARGIN / (4 * most_steps) / 2})
    assert (trace.rankings.query[0], trace.rankings.side[0], trace.rankings.num_ranked[0]) == (0, 0, 6)
    return with_rank(trace, rank, rank)


def with_rank(trace: Trace, optimistic: float, pessimistic: float) -> Trace:
    """A copy with other ranks of the first query's head side."""
    columns = [column.copy() for column in trace.rankings[-2:]]
    columns[0][0], columns[1][0] = optimistic, pessimistic
    return with_rankings(trace, optimistic=columns[0], pessimistic=columns[1])


def compared(expected: Trace, actual: Trace) -> Comparison:
    return compare_rankings(compare(expected, actual), expected, actual)


@pytest.mark.parametrize(
    ("rank", "got", "is_rounding"),
    [
        (1, (2, 2), True),  # the second is within the margin, the third is not
        (1, (1, 2), True),
        (1, (4, 4), False),
        (2, (1, 1), True),
        (2, (3, 3), False),
        (3, (2, 2), False),
        (3, (3, 4), False),
        (6, (5, 5), False),
    ],
)
def test_ranks_differ_by_rounding_as_far_as_scores_are_close(rank: int, got: tuple[int, int], is_rounding: bool):
    expected = ranked(VALUES, rank)
    comparison = compared(expected, with_rank(expected, *got))
    assert comparison.verdict is (Verdict.AGREE if is_rounding else Verdict.DIVERGE)
    assert comparison.notes == (("1 ranks differ by near-ties alone",) if is_rounding else ())
    assert comparison.level is (None if is_rounding else Level.METRIC)
    # Exact engines do not round.
    exact = with_header(expected, engine={"score_error": 0.0})
    assert compared(exact, with_rank(exact, *got)).verdict is Verdict.DIVERGE


def test_scores_that_are_further_apart_than_their_errors_do_not_swap_ranks():
    for distance, is_rounding in ((0.95, True), (1.05, False), (1.2, False)):
        expected = ranked((-1.0, -1.0 - distance * MARGIN, *VALUES[2:]), 1)
        assert compared(expected, with_rank(expected, 2, 2)).verdict is (
            Verdict.AGREE if is_rounding else Verdict.DIVERGE
        )


def test_the_number_of_candidates_ranked_is_never_rounding():
    expected = ranked(VALUES, 1)
    num_ranked = expected.rankings.num_ranked.copy()
    num_ranked[0] += 1
    assert compared(expected, with_rankings(expected, num_ranked=num_ranked)).verdict is Verdict.DIVERGE


def test_what_is_not_proved_is_a_hundred_nats_lower():
    outcomes = (Outcome.PROVED, Outcome.FAILED, *(Outcome.PROVED,) * 4)
    expected = ranked(VALUES, 1, outcomes=outcomes)
    assert compared(expected, with_rank(expected, 2, 2)).verdict is Verdict.DIVERGE
    expected = ranked((-150.0, -50.2, -160.0, -161.0, -162.0, -163.0), 1, outcomes=outcomes)
    assert compared(expected, with_rank(expected, 2, 2)).verdict is Verdict.AGREE


def test_a_wrong_rank_is_printed_with_its_query_and_both_values():
    trace = small_trace()
    (divergence,) = compared(trace, with_rank(trace, 2, 5)).divergences
    first = trace.rankings
    assert divergence.expected == f"optimistic {first.optimistic[0]:g}, pessimistic {first.pessimistic[0]:g}, of 6"
    assert divergence.actual == "optimistic 2, pessimistic 5, of 6"
    assert (divergence.candidate, divergence.step, divergence.field) == (0, -1, "rankings")
    assert divergence.atom == "locatedInCR(armenia, asia)"
    assert (divergence.query, divergence.side, divergence.level) == (0, "head", Level.RANK)


@pytest.mark.parametrize("score_error", [0.0, 0.25])
def test_ranks_of_a_query_without_candidates_are_of_no_candidate(score_error: float):
    trace = with_header(small_trace(), engine={"score_error": score_error})
    more = Rankings(*(np.append(column, column[-1:]) for column in trace.rankings))
    more.query[-1] = 99
    (divergence,) = compared(trace, replace(trace, rankings=more)).divergences
    assert (divergence.candidate, divergence.atom, divergence.query) == (-1, "", 99)
    assert divergence.expected == "not ranked"
    assert divergence.actual.startswith("optimistic ")


@pytest.mark.parametrize(("name", "level"), [("optimistic", Level.METRIC), ("num_ranked", Level.RANK)])
def test_ranks_that_follow_from_a_divergence_raise_its_level_and_are_not_divergences(name: str, level: Level):
    trace = small_trace()
    wrong = with_element(trace, "candidates.is_limited", 0, lambda flag: 1 - flag)
    values = getattr(trace.rankings, name).copy()
    values[0] += 1
    comparison = compared(trace, with_rankings(wrong, **{name: values}))
    assert [each.field for each in comparison.divergences] == ["candidates.is_limited"]
    assert (comparison.level, comparison.notes) == (level, ())
    assert compared(trace, wrong).level is Level.RENAMING


def test_the_mean_reciprocal_rank_is_of_realistic_ranks():
    ranks = np.array([1.0, 2.0, 4.0]), np.array([1.0, 6.0, 4.0])
    rankings = Rankings(np.arange(3), np.zeros(3), np.full(3, 9), *ranks)
    assert mean_reciprocal_rank(rankings) == pytest.approx((1 + 1 / 4 + 1 / 4) / 3)
    assert mean_reciprocal_rank(Rankings(*(column[:0] for column in rankings))) == 0.0


def test_a_divergence_on_one_side_of_a_query_excuses_no_rank_on_its_other_side():
    trace = small_trace()
    candidates = trace.columns.candidates
    row = int(np.flatnonzero((candidates.query == 0) & (candidates.side == 1))[0])
    actual = with_element(trace, "candidates.is_limited", row, lambda value: 1 - value)
    own, rank = compared(trace, with_rank(actual, 2, 5)).divergences
    assert (own.query, own.side, own.field) == (0, "tail", "candidates.is_limited")
    assert (rank.query, rank.side, rank.field) == (0, "head", "rankings")
