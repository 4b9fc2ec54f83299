"""Intervals of metrics, and the paired comparison of two evaluations."""

import math
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import kgverify as kv
from benchmarks.coverage import SETTINGS, count_covered, draw_gaps
from kgverify.ranking.intervals import bootstrap_metrics, compare_pairs, find_t_quantile, flip_signs
from kgverify.trace.model.columns import Rankings

MRR = "both.realistic.mean_reciprocal_rank"
OPTIONS = kv.EvaluationOptions(check=0, minimum="none")


def make_rankings(ranks: Any) -> Rankings:
    """Return rankings from the ranks of the head and the tail side of each query, [n, 2]."""
    ranks = np.asarray(ranks, np.float64)
    query, side = np.divmod(np.arange(ranks.size), 2)
    num_ranked = np.full(ranks.size, 1000, np.uint32)
    return Rankings(query.astype(np.int32), side.astype(np.int8), num_ranked, ranks.ravel(), ranks.ravel())


def test_quantiles_of_students_distribution_are_those_of_the_tables():
    tables = {1: 12.7062, 2: 4.30265, 3: 3.18245, 10: 2.22814, 30: 2.04227, 99: 1.98422, 200: 1.97190, 1000: 1.96234}
    assert {each: find_t_quantile(0.975, each) for each in tables} == pytest.approx(tables, rel=1e-5)


def test_the_interval_of_a_paired_difference_covers_the_true_one_as_often_as_it_says():
    """A sample of `python -m benchmarks coverage`, which simulates 10,000 pairs."""
    for name in ("heavy tails", "93 % equal"):
        true = float(draw_gaps(SETTINGS[name], (200, 2000), np.random.default_rng(1)).mean())
        num = count_covered(SETTINGS[name], 100, 500, true, np.random.default_rng(2))
        assert abs(num - 475) < 4 * math.sqrt(500 * 0.95 * 0.05), name


def test_both_sides_of_a_query_are_drawn_together():
    """The two ranks of each query have the same mean reciprocal, though ranks on one side differ."""
    found = bootstrap_metrics(make_rankings([(1, 4), (4, 1)] * 50), seed=3)
    assert found[MRR] == (0.625, 0.625)
    low, high = found["head.realistic.mean_reciprocal_rank"]
    # The standard error of a mean of values 1 and 1/4, equally often.
    assert (high - low) / (2 * 1.96) == pytest.approx(0.375 / 10, rel=0.1)
    assert found == bootstrap_metrics(make_rankings([(1, 4), (4, 1)] * 50), seed=3)
    assert bootstrap_metrics(make_rankings([(1, 4)]), seed=3) == {}


def test_a_bootstrap_gives_the_interval_that_drawing_queries_one_by_one_gives():
    random = np.random.default_rng(5)
    ranks = np.floor(np.exp(2 * random.standard_normal((80, 2)))).clip(1)
    low, high = bootstrap_metrics(make_rankings(ranks), seed=0)[MRR]
    values = (1 / ranks).mean(1)
    means = values[random.integers(0, 80, (4000, 80))].mean(1)
    assert (low, high) == pytest.approx(tuple(np.quantile(means, (0.025, 0.975))), abs=0.01)


def test_the_sign_flip_test_is_that_over_all_signs():
    gap = np.array([0.5, 0.25, 0.25, -0.1, 0.0, 0.0])
    totals = [
        abs(sum(sign * each for sign, each in zip(signs, gap, strict=True))) for signs in product((-1, 1), repeat=6)
    ]
    exact = np.mean([each >= gap.sum() - 1e-12 for each in totals])
    assert flip_signs(gap, 0) == pytest.approx(exact, abs=0.02)
    assert flip_signs(np.zeros(9), 0) == 1.0


def test_a_comparison_is_that_of_the_queries_and_turns_with_its_sides():
    first, second = make_rankings([(1, 2), (3, 4), (1, 1), (2, 2)]), make_rankings([(1, 1), (3, 4), (1, 2), (1, 1)])
    found, turned = compare_pairs(first, second), compare_pairs(second, first)
    gaps = np.array([0.25, 0, -0.25, 0.5])
    one, other = found[MRR], turned[MRR]
    assert (one.num_queries, one.num_differing) == (4, 3)
    assert one.difference == pytest.approx(gaps.mean())
    assert one.high - one.difference == pytest.approx(4.30265 * gaps.std(ddof=1) / 2, rel=1e-5)
    assert (other.first, other.difference, other.low, other.high) == (one.second, -one.difference, -one.high, -one.low)
    assert other.p_value == one.p_value
    single = compare_pairs(first, first._replace(optimistic=first.optimistic * [1, 1, 1, 2, 1, 1, 1, 1]))[MRR]
    assert (single.num_differing, single.low, single.high) == (1, -1.0, 1.0)


@pytest.fixture(scope="module")
def report() -> kv.EvaluationReport:
    return kv.evaluate("countries", "reference", queries=4, corruptions=5, options=OPTIONS)


def test_only_evaluations_of_the_same_queries_are_compared(report: kv.EvaluationReport, tmp_path: Path):
    same = kv.compare_evaluations(report, report).differences[MRR]
    assert (same.difference, same.low, same.high, same.p_value, same.num_differing) == (0, 0, 0, 1, 0)
    for change, words in (
        ({"queries": 5}, "num_queries: 4 and 5"),
        ({"corruptions": 6}, "num_corruptions: 5 and 6"),
        ({"seed": 1}, "seed of the corruptions: 0 and 1"),
        ({"queries": kv.Queries(4, 5, "valid")}, "split: test and valid"),
        ({"graph": "random:3", "corruptions": "all"}, "graph, filter or domains"),
    ):
        graph = change.pop("graph", "countries")
        other = kv.evaluate(graph, "reference", **{"queries": 4, "corruptions": 5} | change, options=OPTIONS)
        with pytest.raises(kv.UserError, match=words):
            kv.compare_evaluations(report, other)
    ties = msgspec.structs.replace(report, ties="equal strengths tie")
    with pytest.raises(kv.UserError, match=r"ties: log-probabilities within 0\.0001 nats tie and equal strengths tie"):
        kv.compare_evaluations(report, ties)
    assert kv.compare_evaluations(report, ties, accept=["ties"]).differences[MRR].num_differing == 0
    lost = msgspec.structs.replace(report, ranks=())
    (tmp_path / "lost.json").write_bytes(msgspec.json.encode(lost))
    with pytest.raises(kv.UserError, match="has no ranks"):
        kv.compare_evaluations(tmp_path / "lost.json", report)


def test_tables_hold_every_rank_relation_and_metric(report: kv.EvaluationReport):
    queries, relations, metrics = map(report.to_pandas, ("queries", "relations", "metrics"))
    assert (1 / queries["realistic"]).mean() == pytest.approx(report.metrics[MRR])
    assert list(queries[["query", "side"]].itertuples(index=False)) == [
        (query, side) for query in range(4) for side in ("head", "tail")
    ]
    both = relations[relations["side"] == "both"]
    assert (both["num_rankings"].sum(), len(queries)) == (8, 8)
    weighted = (both["num_rankings"] * both["mean_reciprocal_rank"]).sum() / 8
    assert weighted == pytest.approx(report.metrics[MRR])
    assert dict(zip(metrics["metric"], metrics["value"], strict=True)).keys() == {
        "mean_reciprocal_rank", "hits_at_1", "hits_at_3", "hits_at_10",
    }  # fmt: skip
    assert len(metrics) == len(report.metrics)
    with_interval = metrics[metrics["low"].notna()]
    assert set(with_interval["rank_type"]) == {"realistic"}
    assert (with_interval["low"] <= with_interval["value"]).all()
    with pytest.raises(kv.UserError, match="unknown table 'ranks'"):
        report.to_pandas("ranks")
