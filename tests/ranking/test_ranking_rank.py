"""Ranks: the reference's, and at no tolerance PyKEEN's; metrics under PyKEEN's keys."""

import random
import warnings
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kgverify as kv
from kgverify.engines.reference.ranking import compute_metrics as compute_by_reference
from kgverify.engines.reference.ranking import rank_candidates as rank_by_reference
from kgverify.errors import InternalError
from kgverify.ranking.rank import RANK_TOLERANCE, compute_metrics, drop_repeated, rank_candidates

TRUE = 1000
"""The entity of every true triple."""


def make_candidates(rows: list[tuple[int, int, int, int, float]]) -> tuple[kv.Candidates, np.ndarray]:
    """Return candidates of rows (query, side, entity, outcome, log-probability), and the true triples."""
    query, side, entity, outcome = np.array([row[:4] for row in rows], np.int32).reshape(-1, 4).T
    atom = np.full((len(rows), 3), TRUE, np.int32)
    atom[:, 0] = 0
    atom[np.arange(len(rows)), 1 + side] = entity
    log_probability = np.array([row[4] for row in rows], np.float64)
    num_queries = int(query.max(initial=0)) + 1
    return kv.Candidates(
        query,
        side.astype(np.int8),
        atom,
        np.ones(len(rows), np.uint32),
        outcome.astype(np.int8),
        np.zeros(len(rows), np.uint8),
        log_probability,
    ), np.full((num_queries, 3), (0, TRUE, TRUE), np.int32)


def assert_ranked_by_reference(candidates: kv.Candidates, triples: np.ndarray, tolerance: float) -> kv.Rankings:
    ours = rank_candidates(candidates, triples, tolerance)
    theirs = rank_by_reference(candidates, triples, tolerance)
    for name, column, other in zip(ours._fields, ours, theirs, strict=True):
        assert column.dtype == other.dtype, name
        np.testing.assert_array_equal(column, other, err_msg=name)
    assert compute_metrics(ours) == compute_by_reference(ours)
    return ours


ORDERS = {
    "any order": lambda rows, rng: rng.sample(rows, len(rows)),
    "drawing order": lambda rows, rng: rows,
    "drawing order, twice": lambda rows, rng: rows + rows,
    "the first one last": lambda rows, rng: rows[1:] + rows[:1],
    "the last but one again": lambda rows, rng: rows[:-1] + rows[-2:],
}
"""Duplicates are searched only in candidates of another order than that in which they are drawn."""


def draw_rows(seed: int, order: str) -> list[tuple[int, int, int, int, float]]:
    """Candidates of a few queries, some listed twice in any order, some queries without their true triple."""
    rng, rows = random.Random(seed), []
    for query in range(4):
        for side in (0, 1):
            num_true = rng.choice([0, 1, 1, 1, 2] if order == "any order" else [1])
            entities = [TRUE] * num_true + sorted(rng.sample(range(30), rng.randint(0, 12)))
            rows += [(query, side, entity) for entity in entities]
    scores = [0.0, -0.25, -0.25 - 5e-5, -1.0, -1.5, -100.25]
    return ORDERS[order]([(*row, rng.choice([1, 1, 2, 3]), rng.choice(scores)) for row in rows], rng)


@settings(max_examples=100)
@given(
    seed=st.integers(0, 10_000),
    order=st.sampled_from([*ORDERS]),
    tolerance=st.sampled_from([0.0, RANK_TOLERANCE, 0.25, 1.0]),
)
def test_ranks_and_metrics_are_those_of_the_reference(seed: int, order: str, tolerance: float) -> None:
    assert_ranked_by_reference(*make_candidates(draw_rows(seed, order)), tolerance)


def test_many_candidates_and_queries_rank_as_by_the_reference() -> None:
    """More candidates than 16 bits can number, gaps at the edges of the tolerance, and candidates that are not PROVED."""
    gaps = [0.0, 0.5, -0.5, 0.5 - 2**-20, 2**-20 - 0.5, 3.0, -3.0, 2**-9, -(2**-30), 1.25]
    rows = []
    for query, num in ((0, 66_000), (9_000, 20), (70_000, 20)):
        for i in range(num):
            outcome = 2 + i % 2 if i % 7 == 5 else 1
            # What is not PROVED is as near to the true triple as the rest.
            rows.append(
                (query, i % 2, TRUE if i < 2 else 2 * TRUE + i, outcome, gaps[i % 10] - 2049.0 + 100 * (outcome != 1))
            )
    rows.sort(key=lambda row: row[:2])
    for tolerance in (0.0, 0.5):
        assert_ranked_by_reference(*make_candidates(rows), tolerance)


@pytest.mark.deep
def test_ranks_and_metrics_are_those_of_pykeen() -> None:
    """Gaps of exactly the tolerance, ranks of exactly k, and more than 255 queries, some with few corruptions."""
    rng, tolerance = random.Random(6), 2.0**-13
    rows, snapped = [], []
    for query in range(300):
        for side in (0, 1):
            true = -rng.randrange(8) / 4
            above = [rng.choice([tolerance, 1.0]) for _ in range(rng.choice([0, 0, 1, 2, 3, 9, 10]))]
            tied = [rng.choice([0.0, 1, -1]) * tolerance * (1 - 2.0**-10) for _ in range(rng.choice([0, 0, 1, 2, 4]))]
            gaps = above + tied + [-rng.choice([tolerance, 1.0]) for _ in range(rng.randrange(4))]
            rng.shuffle(gaps)
            rows.append((query, side, TRUE, 1, true))
            rows += [(query, side, 1 + i, 1, true + gap) for i, gap in enumerate(gaps)]
            snapped.append([0.0, *(0.0 if abs(gap) < tolerance else gap for gap in gaps)])
    rankings = assert_ranked_by_reference(*make_candidates(rows), tolerance)
    metrics = compute_metrics(rankings)
    assert len(metrics) == 36
    for rank in (1, 3, 10):
        assert ((rankings.optimistic == rank) & (rankings.pessimistic == rank)).any()
    # Without a tolerance, snapped scores tie where they are equal.
    exact = [
        (query, side, entity, 1, score)
        for (query, side, entity, _, _), score in zip(rows, chain(*snapped), strict=True)
    ]
    assert compute_metrics(rank_candidates(*make_candidates(exact), 0.0)) == metrics
    assert_evaluated_by_pykeen(snapped, rankings, metrics)


def assert_evaluated_by_pykeen(scores: list[list[float]], rankings: kv.Rankings, metrics: dict[str, float]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what PyKEEN and its dependencies warn of on import
        torch: Any = pytest.importorskip("torch")
        evaluation: Any = pytest.importorskip("pykeen.evaluation")
        ranks = pytest.importorskip("pykeen.evaluation.ranks").Ranks
        evaluator = evaluation.RankBasedEvaluator()
        for i, found in enumerate(scores):
            tensor = torch.tensor([found], dtype=torch.float64)
            evaluator.process_scores_(
                hrt_batch=torch.zeros((1, 3), dtype=torch.long),
                target=("head", "tail")[i % 2],
                scores=tensor,
                true_scores=tensor[:, :1],
            )
            theirs = ranks.from_scores(true_score=tensor[:, :1], all_scores=tensor)
            found_ranks = rankings.optimistic[i], rankings.pessimistic[i]
            assert found_ranks == (float(theirs.optimistic), float(theirs.pessimistic))
        results = evaluator.finalize()
        expected = {key: float(results.get_metric(key)) for key in metrics}
        parsed = {evaluation.RankBasedMetricResults.key_from_string(key) for key in metrics}
    assert metrics == pytest.approx(expected, rel=1e-6)
    assert len(parsed) == len(metrics)


def test_the_same_atoms_of_queries_far_apart_are_not_repeated() -> None:
    query, side = np.array([0, 1 << 30, 1 << 30, 0], np.int32), np.array([1, 1, 1, 0], np.int8)
    candidates = kv.CandidateSet(query, side, np.tile(np.array([0, 1, 2], np.int32), (4, 1)))
    assert sorted(drop_repeated(candidates).tolist()) == [0, 1, 3]


@pytest.mark.parametrize("rank", [0.5, -1.0, float("nan"), float("inf")])
def test_an_impossible_mean_reciprocal_rank_is_an_internal_error(rank: float) -> None:
    ranks = np.array([rank, rank])
    rankings = kv.Rankings(np.arange(2), np.array([0, 1], np.int8), np.full(2, 99, np.uint32), ranks, ranks)
    with pytest.raises(InternalError, match=r"outside \(0, 1\]"):
        compute_metrics(rankings)


def test_no_candidates_have_no_ranks_and_no_metrics() -> None:
    assert compute_metrics(assert_ranked_by_reference(*make_candidates([]), 0.0)) == {}
