"""Ranks that differ: what rounding alone can do, what it cannot, and what is said of it."""

from dataclasses import replace

import numpy as np
import pytest
from comparison_traces import (
    column_of,
    small_trace,
    with_column,
    with_element,
    with_rankings,
    with_score_error,
)
from comparison_traces import compare_with_ranks as compare
from trace_changes import base_trace, tie

from kgverify import Rankings, Trace, Verdict

MARGIN = 0.3
"""The error bound of a gap of two log-probabilities in the traces of `ranked`, nats."""
VALUES = (-1.0, -1.2, -2.0, -3.0, -4.0, -5.0)
PROVED, FAILED = 1, 2


def ranked(values: tuple[float, ...], rank: int, *, outcomes: tuple[int, ...] = (PROVED,) * 6) -> Trace:
    """A trace in which the candidates of the first query's head side have these log-probabilities, and this rank."""
    trace = small_trace()
    candidates = trace.columns.candidates
    rows = np.flatnonzero((candidates.query == 0) & (candidates.side == 0))
    for name, wanted in (("log_probability", values), ("outcome", outcomes)):
        column = column_of(trace, f"candidates.{name}").copy()
        column[rows] = wanted
        trace = with_column(trace, f"candidates.{name}", column)
    return with_rank(with_score_error(trace, MARGIN / (8 * int(candidates.num_steps[rows].max()))), rank, rank)


def with_rank(trace: Trace, optimistic: float, pessimistic: float) -> Trace:
    """A copy with other ranks of the first query's head side."""
    columns = [column.copy() for column in trace.rankings[-2:]]
    columns[0][0], columns[1][0] = optimistic, pessimistic
    return with_rankings(trace, optimistic=columns[0], pessimistic=columns[1])


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
    comparison = compare(expected, with_rank(expected, *got))
    assert comparison.verdict is (Verdict.AGREE if is_rounding else Verdict.DIVERGE)
    assert comparison.notes == (("1 ranks differ by near-ties alone",) if is_rounding else ())
    assert comparison.level == (None if is_rounding else "metric")
    exact = with_score_error(expected, 0.0)
    assert compare(exact, with_rank(exact, *got)).verdict is Verdict.DIVERGE


@pytest.mark.parametrize(
    ("values", "outcomes", "is_rounding"),
    [
        ((-1.0, -1.0 - 0.95 * MARGIN, *VALUES[2:]), {}, True),
        ((-1.0, -1.0 - 1.05 * MARGIN, *VALUES[2:]), {}, False),
        (VALUES, {1: FAILED}, False),
        # What is not proved ranks a hundred nats lower.
        ((-150.0, -50.2, -160.0, -161.0, -162.0, -163.0), {1: FAILED}, True),
    ],
)
def test_only_scores_as_close_as_their_errors_swap_ranks(values: tuple, outcomes: dict[int, int], is_rounding: bool):
    expected = ranked(values, 1, outcomes=tuple(outcomes.get(i, PROVED) for i in range(6)))
    verdict = compare(expected, with_rank(expected, 2, 2)).verdict
    assert verdict is (Verdict.AGREE if is_rounding else Verdict.DIVERGE)


def test_a_wrong_rank_is_printed_with_its_query_and_both_values():
    trace = small_trace()
    (divergence,) = compare(trace, with_rank(trace, 2, 5)).divergences
    first = trace.rankings
    assert divergence.expected == f"optimistic {first.optimistic[0]:g}, pessimistic {first.pessimistic[0]:g}, of 6"
    assert divergence.actual == "optimistic 2, pessimistic 5, of 6"
    assert (divergence.candidate, divergence.step, divergence.field) == (0, -1, "rankings")
    assert divergence.atom == "locatedInCR(armenia, asia)"
    assert (divergence.query, divergence.side, divergence.level) == (0, "head", "rank")


@pytest.mark.parametrize("score_error", [0.0, 0.25])
def test_ranks_of_a_query_without_candidates_are_of_no_candidate(score_error: float):
    trace = with_score_error(small_trace(), score_error)
    more = Rankings(*(np.append(column, column[-1:]) for column in trace.rankings))
    more.query[-1] = 99
    (divergence,) = compare(trace, replace(trace, rankings=more)).divergences
    assert (divergence.candidate, divergence.atom, divergence.query) == (-1, "", 99)
    assert divergence.expected == "not ranked"
    assert divergence.actual.startswith("optimistic ")


def test_absent_ranks_are_named():
    comparison = compare(small_trace(), replace(small_trace(), rankings=None))
    assert comparison.verdict is Verdict.AGREE
    assert comparison.notes == ("ranks were not compared: the actual trace has none",)


@pytest.mark.parametrize(("name", "level"), [("optimistic", "metric"), ("num_ranked", "rank")])
def test_ranks_that_follow_from_a_divergence_raise_its_level_and_are_not_divergences(name: str, level: str):
    trace = small_trace()
    wrong = with_element(trace, "candidates.is_limited", 0, lambda flag: 1 - flag)
    values = getattr(trace.rankings, name).copy()
    values[0] += 1
    comparison = compare(trace, with_rankings(wrong, **{name: values}))
    assert [each.field for each in comparison.divergences] == ["candidates.is_limited"]
    assert (comparison.level, comparison.notes) == (level, ())
    assert compare(trace, wrong).level == "renaming"


def test_a_divergence_on_one_side_of_a_query_excuses_no_rank_on_its_other_side():
    trace = small_trace()
    candidates = trace.columns.candidates
    row = int(np.flatnonzero((candidates.query == 0) & (candidates.side == 1))[0])
    actual = with_element(trace, "candidates.is_limited", row, lambda value: 1 - value)
    own, rank = compare(trace, with_rank(actual, 2, 5)).divergences
    assert (own.query, own.side, own.field) == (0, "tail", "candidates.is_limited")
    assert (rank.query, rank.side, rank.field) == (0, "head", "rankings")


def test_a_rank_that_follows_from_a_near_tie_of_choices_is_no_divergence():
    trace = base_trace(score_error=1e-3)
    tied = tie(trace, np.random.default_rng(0))
    candidates, rankings = trace.columns.candidates, trace.rankings
    (near, *_) = compare(trace, tied).near_ties
    query, side = (column[near.candidate] for column in candidates[:2])
    own = (rankings.query == query) & (rankings.side == side)
    comparison = compare(trace, with_rankings(tied, num_ranked=rankings.num_ranked + own.astype(np.uint32)))
    assert (comparison.verdict, comparison.divergences) == (Verdict.AGREE, ())
    assert comparison.notes[-1] == "1 ranks differ by near-ties alone"
