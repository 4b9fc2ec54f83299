"""Ranks: the reference's, and at no tolerance PyKEEN's; metrics under PyKEEN's keys."""

import random
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kgreference
from kgverify.engines.reference.ranking import compute_metrics as compute_by_reference
from kgverify.engines.reference.ranking import rank_candidates as rank_by_reference
from kgverify.errors import InternalError
from kgverify.program.outcomes import Outcome
from kgverify.ranking.rank import MRR, RANK_TOLERANCE, compute_metrics, drop_repeated, find_groups, rank_candidates
from kgverify.trace.model.columns import Candidates, CandidateSet, Rankings

NUM_CONSTANTS = 30


def make_candidates(rng: random.Random, scores: list[float] | None = None) -> tuple[Candidates, np.ndarray]:
    """Candidates of a few queries in any order, some listed twice, some queries without their true triple."""
    triples = np.array([(0, 1 + q, NUM_CONSTANTS - q) for q in range(4)], np.int32)
    rows = []
    for query in range(4):
        for side in (0, 1):
            entities = rng.sample(range(NUM_CONSTANTS + 1), rng.randint(0, 12))
            atoms = [triples[query].tolist() for _ in range(rng.choice([0, 1, 1, 1, 2]))]
            for entity in entities:
                atom = triples[query].tolist()
                atom[1 + side] = entity
                atoms.append(atom)
            rows += [(query, side, atom) for atom in atoms]
    rng.shuffle(rows)
    num = len(rows)
    log_probability = [rng.choice(scores or [0.0, -0.25, -0.25 - 5e-5, -1.0, -1.5, -100.25]) for _ in rows]
    return Candidates(
        np.array([row[0] for row in rows], np.int32),
        np.array([row[1] for row in rows], np.int8),
        np.array([row[2] for row in rows], np.int32).reshape(-1, 3),
        np.ones(num, np.uint32),
        np.array([rng.choice([1, 1, 2, 3]) for _ in rows], np.int8),
        np.zeros(num, np.uint8),
        np.array(log_probability, np.float64),
    ), triples


@settings(deadline=None)
@given(seed=st.integers(0, 10_000), tolerance=st.sampled_from([0.0, RANK_TOLERANCE, 0.25, 1.0]))
def test_ranks_are_those_of_the_reference(seed: int, tolerance: float):
    candidates, triples = make_candidates(random.Random(seed))
    ours = rank_candidates(candidates, triples, tolerance)
    theirs = rank_by_reference(candidates, triples, tolerance)
    for name, column, other in zip(Rankings._fields, ours, theirs, strict=True):
        assert column.dtype == other.dtype, name
        np.testing.assert_array_equal(column, other, err_msg=name)


@pytest.mark.parametrize("seed", range(20))
def test_candidates_in_drawing_order_rank_the_same_in_any_other_order(seed: int):
    """Duplicates are searched only in candidates of another order."""
    candidates, triples = make_candidates(random.Random(seed))
    keys = np.column_stack((candidates.query, candidates.side, candidates.atom))
    first = np.unique(keys, axis=0, return_index=True)[1]
    corruption = (candidates.atom[first] != triples[candidates.query[first]]).any(1)
    drawn = first[np.lexsort((corruption, candidates.side[first], candidates.query[first]))]
    shuffled = np.random.default_rng(seed).permutation(np.concatenate((drawn, drawn)))
    ranks = [rank_candidates(Candidates(*(c[rows] for c in candidates)), triples) for rows in (drawn, shuffled)]
    for column, other in zip(*ranks, strict=True):
        np.testing.assert_array_equal(column, other)


def test_groups_are_found_only_for_candidates_in_drawing_order():
    triples = np.array([(0, 1, 2), (1, 3, 4)], np.int32)
    rows = [(0, 1, 0, 1, 2), (0, 1, 0, 1, 0), (0, 1, 0, 1, 5), (1, 0, 1, 3, 4), (1, 0, 1, -1, 4), (1, 1, 1, 3, 7)]

    def find(rows: list[tuple[int, ...]]):
        return find_groups(CandidateSet(*_proved(rows, [0.0] * len(rows))[:3]), triples)

    groups = find(rows)
    assert groups is not None
    assert groups.starts.tolist() == [0, 3, 5, 6]
    assert groups.has_true.tolist() == [True, True, False]
    assert groups.true.tolist() == [0, 3]
    swaps = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (0, 3)]
    for i, j in swaps:
        other = list(rows)
        other[i], other[j] = rows[j], rows[i]
        assert find(other) is None, (i, j)
    for i in range(len(rows)):
        assert find([*rows[: i + 1], *rows[i:]]) is None, i
    assert find([*rows[:3], (0, 1, 0, 1, 6), *rows[3:]]) is not None
    assert find([*rows[:3], (0, 1, 2, 1, 6), *rows[3:]]) is None


def test_no_candidate_gives_no_rank():
    candidates, triples = make_candidates(random.Random(0))
    none = Candidates(*(column[:0] for column in candidates))
    assert [len(column) for column in rank_candidates(none, triples)] == [0] * 5


def test_candidates_that_are_not_proved_rank_below_those_that_are():
    triples = np.array([(0, 1, 2)], np.int32)
    candidates = Candidates(
        np.zeros(3, np.int32),
        np.zeros(3, np.int8),
        np.array([(0, 1, 2), (0, 5, 2), (0, 6, 2)], np.int32),
        np.ones(3, np.uint32),
        np.array([Outcome.PROVED, Outcome.FAILED, Outcome.DEPTH_LIMIT], np.int8),
        np.zeros(3, np.uint8),
        np.array([-40.0, 0.0, 0.0]),
    )
    ranks = rank_candidates(candidates, triples)
    assert (ranks.optimistic.tolist(), ranks.pessimistic.tolist(), ranks.num_ranked.tolist()) == ([1.0], [1.0], [3])


def test_ranks_and_metrics_at_no_tolerance_are_those_of_pykeen():
    rng = random.Random(5)
    num_ties = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what PyKEEN and its dependencies warn of on import
        pytest.importorskip("torch")
        pytest.importorskip("pykeen")
        import torch
        from pykeen.evaluation import RankBasedEvaluator
        from pykeen.evaluation.ranks import Ranks as PyKEENRanks

        num_queries, num_corruptions = 60, 20
        triples = np.array([(0, 0, 1000)] * num_queries, np.int32)
        evaluator = RankBasedEvaluator()
        rows, scores = [], []
        for query in range(num_queries):
            for side, name in ((0, "head"), (1, "tail")):
                found = [rng.randint(-20, 0) / 4 for _ in range(1 + num_corruptions)]
                num_ties += found.count(found[0]) > 1
                atoms = [(0, 0, 1000)] + [
                    (0, entity, 1000) if side == 0 else (0, 0, entity) for entity in range(1, 1 + num_corruptions)
                ]
                rows += [(query, side, *atom) for atom in atoms]
                scores += found
                tensor = torch.tensor([found], dtype=torch.float64)
                evaluator.process_scores_(
                    hrt_batch=torch.zeros((1, 3), dtype=torch.long),
                    target=name,
                    scores=tensor,
                    true_scores=tensor[:, :1],
                )
                theirs = PyKEENRanks.from_scores(true_score=tensor[:, :1], all_scores=tensor)
                ours = rank_candidates(_proved(rows[-len(atoms) :], found), triples, 0.0)
                ranks = float(theirs.optimistic), float(theirs.pessimistic)
                assert (ours.optimistic[0], ours.pessimistic[0]) == ranks
        rankings = rank_candidates(_proved(rows, scores), triples, 0.0)
        metrics = compute_metrics(rankings)
        results = evaluator.finalize()
        expected = {key: float(results.get_metric(key)) for key in metrics}
    assert num_ties > 30
    assert len(metrics) == 36
    assert metrics == pytest.approx(expected, rel=1e-6)


def test_ranks_and_metrics_at_the_edges_are_those_of_the_reference_and_of_pykeen():
    """Gaps of exactly the tolerance, ranks of exactly k, and more than 255 queries, some with few corruptions."""
    rng, tolerance, num_queries = random.Random(6), 2.0**-13, 300
    rows, scores, snapped = [], [], []
    for query in range(num_queries):
        for side in (0, 1):
            true = -rng.randrange(8) / 4
            above = [rng.choice([tolerance, 1.0]) for _ in range(rng.choice([0, 0, 1, 2, 3, 9, 10]))]
            tied = [rng.choice([0.0, 1, -1]) * tolerance * (1 - 2.0**-10) for _ in range(rng.choice([0, 0, 1, 2, 4]))]
            gaps = above + tied + [-rng.choice([tolerance, 1.0]) for _ in range(rng.randrange(4))]
            rng.shuffle(gaps)
            atoms = [(0, 0, 1000)] + [(0, 1 + i, 1000) if side == 0 else (0, 0, 1 + i) for i in range(len(gaps))]
            rows += [(query, side, *atom) for atom in atoms]
            scores += [true, *(true + gap for gap in gaps)]
            snapped.append([0.0, *(0.0 if abs(gap) < tolerance else gap for gap in gaps)])
    candidates = _proved(rows, scores)
    triples = np.array([(0, 0, 1000)] * num_queries, np.int32)
    rankings = rank_candidates(candidates, triples, tolerance)
    for ours, theirs in zip(rankings, rank_by_reference(candidates, triples, tolerance), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    metrics = compute_metrics(rankings)
    assert metrics == compute_by_reference(rankings)
    for rank in (1, 3, 10):
        assert ((rankings.optimistic == rank) & (rankings.pessimistic == rank)).any()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("torch")
        pytest.importorskip("pykeen")
        import torch
        from pykeen.evaluation import RankBasedEvaluator

        evaluator = RankBasedEvaluator()
        for i, found in enumerate(snapped):
            tensor = torch.tensor([found], dtype=torch.float64)
            evaluator.process_scores_(
                hrt_batch=torch.zeros((1, 3), dtype=torch.long),
                target=("head", "tail")[i % 2],
                scores=tensor,
                true_scores=tensor[:, :1],
            )
        results = evaluator.finalize()
        expected = {key: float(results.get_metric(key)) for key in metrics}
    assert metrics == pytest.approx(expected, rel=1e-6)


def _proved(rows: list[tuple[int, ...]], scores: list[float]) -> Candidates:
    table = np.array(rows, np.int32)
    num = len(rows)
    return Candidates(
        table[:, 0],
        table[:, 1].astype(np.int8),
        table[:, 2:],
        np.ones(num, np.uint32),
        np.full(num, Outcome.PROVED, np.int8),
        np.zeros(num, np.uint8),
        np.array(scores),
    )


def make_rankings(optimistic: list[float], pessimistic: list[float], side: list[int]) -> Rankings:
    num = len(side)
    return Rankings(
        np.arange(num, dtype=np.int32),
        np.array(side, np.int8),
        np.full(num, 99, np.uint32),
        np.array(optimistic),
        np.array(pessimistic),
    )


def test_metrics_are_those_of_the_reference_under_keys_that_pykeen_knows():
    rankings = make_rankings([1, 3, 4, 11], [2, 3, 10, 11], [0, 0, 1, 1])
    ranks = [
        kgreference.Ranks(o, (o + p) / 2, p)
        for o, p in zip(rankings.optimistic.tolist(), rankings.pessimistic.tolist(), strict=True)
    ]
    metrics = compute_metrics(rankings)
    assert metrics == pytest.approx(kgreference.metrics(ranks[:2], ranks[2:]), rel=1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("torch")
        pytest.importorskip("pykeen")
        from pykeen.evaluation import RankBasedMetricResults

        parsed = {RankBasedMetricResults.key_from_string(key) for key in metrics}
    assert len(parsed) == len(metrics) == 36


def test_a_side_without_rankings_has_no_metrics():
    metrics = compute_metrics(make_rankings([1], [1], [1]))
    assert {key.split(".")[0] for key in metrics} == {"tail", "both"}
    assert metrics[MRR] == 1.0
    assert compute_metrics(make_rankings([], [], [])) == {}


@pytest.mark.parametrize("rank", [0.5, -1.0, float("nan"), float("inf")])
def test_an_impossible_mean_reciprocal_rank_is_an_internal_error(rank: float):
    with pytest.raises(InternalError, match=r"outside \(0, 1\]"):
        compute_metrics(make_rankings([rank, rank], [rank, rank], [0, 1]))


def test_the_same_atoms_of_queries_far_apart_are_not_repeated():
    query, side = np.array([0, 1 << 30, 1 << 30, 0], np.int32), np.array([1, 1, 1, 0], np.int8)
    candidates = CandidateSet(query, side, np.tile(np.array([0, 1, 2], np.int32), (4, 1)))
    assert sorted(drop_repeated(candidates).tolist()) == [0, 1, 3]
