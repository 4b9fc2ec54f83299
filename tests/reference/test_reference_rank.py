"""Ranks and metrics, by hand, in exact fractions, and against PyKEEN's own."""

import random
import warnings
from collections import Counter
from itertools import islice

import pytest
from judges import ranks as judge

from kgreference import Outcome, Ranks, metrics, rank, ranking_score


def test_a_candidate_that_is_not_proved_loses_a_hundred_nats():
    scores = [ranking_score(-1.5, each) for each in (Outcome.PROVED, Outcome.FAILED, Outcome.DEPTH_LIMIT)]
    assert scores == [-1.5, -101.5, -101.5]


@pytest.mark.parametrize(
    ("scores", "tolerance", "expected"),
    [
        ([0.7, 0.5, 0.1, 0.5], 0.0, (2.0, 3.0, 4.0)),
        ([], 0.0, (1.0, 1.0, 1.0)),
        ([0.5], 0.0, (1.0, 1.5, 2.0)),
        ([0.75, 0.625, 0.375, 0.25], 0.25, (2.0, 3.0, 4.0)),
        ([0.75, 0.625, 0.375, 0.25], 0.0, (3.0, 3.0, 3.0)),
        ([0.75, 0.625, 0.375, 0.25], 1.0, (1.0, 3.0, 5.0)),
    ],
)
def test_ties_and_scores_closer_than_the_tolerance_are_won_shared_and_lost(scores, tolerance, expected):
    assert rank(0.5, scores, tolerance=tolerance) == Ranks(*expected)


@pytest.mark.parametrize("num", [300, pytest.param(3000, marks=pytest.mark.deep)])
def test_ranks_and_metrics_are_those_of_exact_fractions_and_what_is_not_finite_is_refused(num):
    seen = Counter()
    assert judge.judge_ranks(list(islice(judge.draw_rankings(1), num)), seen) == []
    assert seen["ranks"] == num
    assert seen.pop("refused") == 4
    assert not [name for name, count in seen.items() if count < num // 500], seen


def test_metrics_are_means_over_head_tail_and_both():
    values = metrics([Ranks(1.0, 1.5, 2.0)], [Ranks(4.0, 4.0, 4.0), Ranks(11.0, 11.0, 11.0)])
    assert values["head.realistic.mean_reciprocal_rank"] == 1 / 1.5
    assert values["head.realistic.hits_at_1"] == values["tail.pessimistic.hits_at_3"] == 0.0
    assert values["head.optimistic.hits_at_1"] == 1.0
    assert values["both.pessimistic.hits_at_10"] == pytest.approx(2 / 3)
    assert values["both.realistic.mean_reciprocal_rank"] == pytest.approx((1 / 1.5 + 1 / 4 + 1 / 11) / 3)
    assert len(values) == 3 * 3 * 4
    # Ranks of neither side are pooled and nothing else, and a side without ranks has no metrics.
    values = metrics([], [Ranks(1.0, 1.0, 1.0)], [Ranks(2.0, 2.0, 2.0)])
    assert {key.split(".")[0] for key in values} == {"tail", "both"}
    assert (values["both.realistic.hits_at_1"], values["tail.realistic.hits_at_1"]) == (0.5, 1.0)


def test_ranks_metrics_and_their_names_are_those_of_pykeen():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what PyKEEN and its dependencies warn of on import
        pytest.importorskip("pykeen")
        import torch
        from pykeen.evaluation import RankBasedEvaluator
        from pykeen.evaluation.ranks import Ranks as PyKEENRanks

        rng = random.Random(11)
        evaluator = RankBasedEvaluator()
        ranks: dict[str, list[Ranks]] = {"head": [], "tail": []}
        for _ in range(150):
            side = rng.choice(["head", "tail"])
            scores = [rng.randint(0, 30) / 4 for _ in range(40)]  # many ties
            ours = rank(scores[0], scores[1:])
            ranks[side].append(ours)
            all_scores = torch.tensor([scores], dtype=torch.float64)
            true_scores = all_scores[:, :1]
            theirs = PyKEENRanks.from_scores(true_score=true_scores, all_scores=all_scores)
            assert ours == Ranks(*(float(getattr(theirs, rank_type)) for rank_type in Ranks._fields))
            batch = torch.zeros((1, 3), dtype=torch.long)
            evaluator.process_scores_(hrt_batch=batch, target=side, scores=all_scores, true_scores=true_scores)
        results = evaluator.finalize()
        actual = metrics(ranks["head"], ranks["tail"])
        expected = {key: float(results.get_metric(key)) for key in actual}
    assert sum(each.optimistic < each.pessimistic for each in ranks["head"]) > 20
    assert len(actual) == 36
    assert actual == pytest.approx(expected, rel=1e-6)
