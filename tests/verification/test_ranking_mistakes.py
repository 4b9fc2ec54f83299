"""Mistakes in the code of a ranking, each named in the report of two recorded traces that differ in nothing else."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from run_engines import countries_run

from kgverify.ranking.rank import RANK_TOLERANCE
from kgverify.runs.run import build_trace, reference_pipeline
from kgverify.trace.model.columns import CandidateSet, Rankings, Side
from kgverify.trace.model.trace import Trace
from kgverify.verification.recorded import compare_recorded

Rank = Callable[[np.ndarray, float], tuple[float, ...]]
"""The number of ranked candidates and the optimistic and pessimistic rank, from the other scores and the true one."""


@pytest.fixture(scope="module")
def expected() -> Trace:
    run = countries_run(num_queries=5, num_corruptions=24)
    pipeline = reference_pipeline(run)
    columns = pipeline.engine.prove(pipeline.draw_for(run))
    return build_trace(run, pipeline.engine, columns, pipeline.rank(columns.candidates, run.triples, RANK_TOLERANCE))


def ranked(trace: Trace, rank: Rank, *, exchanges: bool = False) -> Trace:
    """Rank the candidates of a trace anew. The first candidate of each query and side is the true one."""
    c = trace.columns.candidates
    scores = c.log_probability - 100.0 * (c.outcome != 1)
    rows = []
    for query, side in dict.fromkeys(zip(c.query.tolist(), c.side.tolist(), strict=True)):
        own = scores[(c.query == query) & (c.side == (1 - side if exchanges else side))]
        rows.append((query, side, *rank(own[1:], own[0])))
    types = np.int32, np.int8, np.uint32, np.float64, np.float64
    columns = zip(*sorted(rows), strict=True)
    return replace(trace, rankings=Rankings(*(np.array(x, t) for x, t in zip(columns, types, strict=True))))


def right(others: np.ndarray, true: float) -> tuple[float, ...]:
    above, tied = (others - true >= RANK_TOLERANCE).sum(), (abs(others - true) < RANK_TOLERANCE).sum()
    return len(others) + 1, 1.0 + above, 1.0 + above + tied


def one_more(others: np.ndarray, true: float) -> tuple[float, ...]:
    num, low, high = right(others, true)
    return num, low + 1, high + 1


def at_least(others: np.ndarray, true: float) -> tuple[float, ...]:
    """Count the scores at or above the true one, itself included, and add one."""
    num, _, high = right(others, true)
    return num, high + 1, high + 1


@pytest.mark.parametrize(
    ("rank", "words"),
    [
        (one_more, "each rank is one too high"),
        (at_least, "each rank is one too high"),
        (lambda others, true: right(-others, -true), "the lowest score ranks first"),
        (lambda others, true: (len(others) + 1, *[len(others) + 1.0] * 2), "the true triple ranks last"),
        (lambda others, true: right(others[:9], true), "only the first candidates of each ranking count, 10 of them"),
    ],
    ids=["one more", "at least", "ascending", "true filtered", "few"],
)
def test_a_mistake_of_the_ranking_is_the_only_cause_and_named(rank: Rank, words: str, expected: Trace):
    assert ranked(expected, right).rankings.optimistic.tolist() == expected.rankings.optimistic.tolist()
    report = compare_recorded(expected, ranked(expected, rank)).report
    assert [cause.stage for cause in report.causes] == ["rank"]
    rule = report.ranking_rules.actual
    assert words in rule.rule
    assert (rule.num_unexplained, report.ranking_rules.expected.num_unexplained) == (0, 0)
    assert words in report.first_divergence.evidence


def test_ranks_of_the_other_side_are_named(expected: Trace):
    report = compare_recorded(expected, ranked(expected, right, exchanges=True)).report
    assert "the ranks of the head and the tail side are exchanged" in report.ranking_rules.actual.rule
    assert [cause.stage for cause in report.causes] == ["rank"]


def test_known_triples_are_counted_on_the_side_that_ranks_them():
    run = countries_run(num_queries=2, num_corruptions=4)
    pipeline = reference_pipeline(run)
    drawn = pipeline.draw_for(run)
    predicate, _, region = run.triples[0].tolist()
    facts = run.graph.program.facts
    known = facts[(facts[:, 0] == predicate) & (facts[:, 2] == region)][:2]
    end = int(np.flatnonzero((drawn.query == 0) & (drawn.side == Side.HEAD))[-1]) + 1
    parts = (
        drawn.take(slice(None, end)),
        CandidateSet(*(np.repeat(each, 2) for each in (drawn.query[:1], np.int8([Side.HEAD]))), known),
        drawn.take(slice(end, None)),
    )
    unfiltered = CandidateSet(*map(np.concatenate, zip(*parts, strict=True)))
    traces = []
    for candidates in (drawn, unfiltered):
        columns = pipeline.engine.prove(candidates)
        rankings = pipeline.rank(columns.candidates, run.triples, RANK_TOLERANCE)
        traces.append(build_trace(run, pipeline.engine, columns, rankings))
    for pair, nums in ((traces, (0, 2)), (traces[::-1], (2, 0))):
        report = compare_recorded(*pair).report
        rules = report.ranking_rules
        assert (rules.expected.num_known_triples, rules.actual.num_known_triples) == nums
