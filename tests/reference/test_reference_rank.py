"""Ranks and metrics, by hand and against PyKEEN's own."""

import math
import random
import warnings
from collections import Counter
from fractions import Fraction
from itertools import islice

import pytest
from judges import ranks as judge

from kgreference import Outcome, Ranks, metrics, rank, ranking_score


def test_a_candidate_that_is_not_proved_loses_a_hundred_nats():
    assert ranking_score(-1.5, Outcome.PROVED) == -1.5
    assert ranking_score(-1.5, Outcome.FAILED) == -101.5
    assert ranking_score(-1.5, Outcome.DEPTH_LIMIT) == -101.5


def test_ties_are_won_shared_and_lost():
    assert rank(0.5, [0.7, 0.5, 0.1, 0.5]) == Ranks(optimistic=2.0, realistic=3.0, pessimistic=4.0)
    assert rank(0.5, []) == Ranks(1.0, 1.0, 1.0)
    assert rank(0.5, [0.5]) == Ranks(1.0, 1.5, 2.0)


def test_scores_closer_than_the_tolerance_are_equal():
    scores = [0.5 + 0.25, 0.5 + 0.125, 0.5 - 0.125, 0.5 - 0.25]
    assert rank(0.5, scores, tolerance=0.25) == Ranks(2.0, 3.0, 4.0)
    assert rank(0.5, scores) == Ranks(3.0, 3.0, 3.0)
    assert rank(0.5, scores, tolerance=1.0) == Ranks(1.0, 3.0, 5.0)


@pytest.mark.parametrize("scores", [(float("nan"), []), (0.0, [float("nan")]), (0.0, [float("-inf")])])
def test_a_nan_score_is_refused(scores):
    with pytest.raises(ValueError, match="finite"):
        rank(*scores)


def test_a_negative_tolerance_is_refused():
    with pytest.raises(ValueError, match="tolerance"):
        rank(0.0, [], tolerance=-1.0)


@pytest.mark.parametrize(
    "num", [300, pytest.param(10_000, marks=pytest.mark.deep), pytest.param(100_000, marks=pytest.mark.exhaustive)]
)
def test_ranks_and_metrics_are_those_of_exact_fractions(num):
    seen = Counter()
    assert judge.judge_ranks(list(islice(judge.draw_rankings(1), num)), seen) == []
    assert seen["ranks"] == num
    assert seen.pop("refused") == 4
    assert not [name for name, count in seen.items() if count < num // 500], seen


def test_metrics_are_means_over_head_tail_and_both():
    values = metrics([Ranks(1.0, 1.5, 2.0)], [Ranks(4.0, 4.0, 4.0), Ranks(11.0, 11.0, 11.0)])
    assert values["head.realistic.mean_reciprocal_rank"] == 1 / 1.5
    assert values["head.realistic.hits_at_1"] == 0.0
    assert values["head.optimistic.hits_at_1"] == 1.0
    assert values["tail.pessimistic.hits_at_3"] == 0.0
    assert values["both.pessimistic.hits_at_10"] == pytest.approx(2 / 3)
    assert values["both.realistic.mean_reciprocal_rank"] == pytest.approx((1 / 1.5 + 1 / 4 + 1 / 11) / 3)
    assert len(values) == 3 * 3 * 4


def test_a_side_without_ranks_has_no_metrics():
    values = metrics([], [Ranks(1.0, 1.0, 1.0)])
    assert not any(key.startswith("head.") for key in values)
    assert values["both.realistic.hits_at_1"] == values["tail.realistic.hits_at_1"] == 1.0


def test_ranks_of_neither_side_are_pooled_and_nothing_else():
    values = metrics([], [Ranks(1.0, 1.0, 1.0)], [Ranks(2.0, 2.0, 2.0)])
    assert {key.split(".")[0] for key in values} == {"tail", "both"}
    assert values["both.realistic.hits_at_1"] == 0.5


def test_ranks_and_metrics_are_those_of_pykeen():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what PyKEEN and its dependencies warn of on import
        pytest.importorskip("pykeen")
        import torch
        from pykeen.evaluation import RankBasedEvaluator
        from pykeen.evaluation.ranks import Ranks as PyKEENRanks

        rng = random.Random(11)
        num_scores = 40
        evaluator = RankBasedEvaluator()
        ranks: dict[str, list[Ranks]] = {"head": [], "tail": []}
        for _ in range(150):
            side = rng.choice(["head", "tail"])
            scores = [rng.randint(0, 30) / 4 for _ in range(num_scores)]  # many ties
            true_score, *corruption_scores = scores
            ours = rank(true_score, corruption_scores)
            ranks[side].append(ours)

            all_scores = torch.tensor([scores], dtype=torch.float64)
            theirs = PyKEENRanks.from_scores(true_score=all_scores[:, :1], all_scores=all_scores)
            assert ours == Ranks(*(float(getattr(theirs, rank_type)) for rank_type in Ranks._fields))
            evaluator.process_scores_(
                hrt_batch=torch.zeros((1, 3), dtype=torch.long),
                target=side,
                scores=all_scores,
                true_scores=all_scores[:, :1],
            )
        results = evaluator.finalize()
        actual = metrics(ranks["head"], ranks["tail"])
        expected = {key: float(results.get_metric(key)) for key in actual}
    assert sum(each.optimistic < each.pessimistic for each in ranks["head"]) > 20
    assert len(actual) == 36
    assert actual == pytest.approx(expected, rel=1e-6)


def test_metric_keys_are_known_to_pykeen():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("pykeen")
        from pykeen.evaluation import RankBasedMetricResults

        parsed = {
            key: RankBasedMetricResults.key_from_string(key)
            for key in metrics([Ranks(1.0, 1.0, 1.0)], [Ranks(1.0, 1.0, 1.0)])
        }
    assert len(set(parsed.values())) == 36
    for key, (side, rank_type, metric) in parsed.items():
        assert key.startswith(f"{side}.{rank_type}.")
        assert metric.startswith("hits_at_" if "hits" in key else "inverse_harmonic_mean_rank")


@pytest.mark.deep
def test_ranks_at_the_edge_of_the_tolerance_are_those_of_pykeen_where_what_is_within_it_is_made_equal():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("pykeen")
        import torch
        from pykeen.evaluation.ranks import Ranks as PyKEENRanks

        num_tied = 0
        for ranking in islice(judge.draw_rankings(2), 2000):
            true_score, tolerance = Fraction(ranking.true_score), Fraction(ranking.tolerance)
            snapped = [
                ranking.true_score if abs(Fraction(score) - true_score) < tolerance else score
                for score in ranking.scores
            ]
            scores = torch.tensor([[ranking.true_score, *snapped]], dtype=torch.float64)
            theirs = PyKEENRanks.from_scores(true_score=scores[:, :1], all_scores=scores)
            expected = tuple(Fraction(float(getattr(theirs, rank_type))) for rank_type in Ranks._fields)
            assert rank(*ranking) == tuple(map(float, expected))
            assert judge.rank(ranking) == expected
            num_tied += not math.isclose(expected[0], expected[2])
    assert num_tied > 200
