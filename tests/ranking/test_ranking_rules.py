"""The rules of ranking that kgverify knows: each recognised by the ranks it gives, and the true triples found."""

import math

import numpy as np
import pytest
from ranking_graphs import make_graph

import kgreference
from kgverify.program.outcomes import Outcome
from kgverify.ranking.draw import BOTH_SIDES, draw_candidates
from kgverify.ranking.rank import Truth, describe_hits, find_truth, rank_candidates
from kgverify.ranking.rules import (
    Counted,
    RankedBy,
    RuleRanker,
    Ties,
    count_above,
    find_known,
    find_unexplained,
    list_rules,
    ranks_of,
)
from kgverify.trace.model.columns import Candidates, CandidateSet, Rankings

TOLERANCE = 1e-4
RULES = list_rules(tuple(RankedBy), (TOLERANCE, 0.0), tuple(Counted))
NOTHING = np.zeros((0, 3), np.int32)


def candidates_of(seed, *, sides=BOTH_SIDES, repeats=0):
    """Random candidates of a random graph, with ties, near ties and unproved candidates."""
    graph, rng = make_graph(seed), np.random.default_rng(seed)
    drawn = draw_candidates(graph, "test", range(len(graph.queries("test"))), 8, seed, sides)
    rows = np.sort(np.append(np.arange(len(drawn.query)), rng.integers(0, len(drawn.query), repeats)))
    drawn, num = drawn.take(rows), len(rows)
    scores = -rng.integers(0, 4, num) - 5e-5 * rng.integers(0, 2, num) - 99.0 * rng.integers(0, 2, num)
    outcomes = rng.choice([Outcome.PROVED, Outcome.FAILED], num).astype(np.int8)
    # A repeated candidate has one score.
    first = np.unique(np.column_stack(drawn), axis=0, return_index=True, return_inverse=True)
    same = first[1][first[2].reshape(-1)]
    zeros = np.zeros(num, np.uint32)
    return graph, Candidates(*drawn, zeros + 3, outcomes[same], zeros.astype(np.uint8), scores[same])


def ranks_by(rule, candidates, truth, known, seed=0):
    """The ranks by a rule, written without `kgverify.ranking.rules`."""
    rng, rows = np.random.default_rng(seed), []
    triples = dict(zip(truth.key.tolist(), map(tuple, truth.atom.tolist()), strict=True))
    atoms, facts = list(map(tuple, candidates.atom.tolist())), set(map(tuple, known.tolist()))
    for query, side in sorted(set(zip(candidates.query.tolist(), candidates.side.tolist(), strict=True))):
        true, scores = triples.get(query * 4 + side), []
        members = [i for i in range(len(atoms)) if (candidates.query[i], candidates.side[i]) == (query, side)]
        if true is None:
            continue
        for place, i in enumerate(members):
            seen = [atoms[j] for j in members[:place]]
            if rule.counted is not Counted.ROWS and atoms[i] in seen:
                continue
            if rule.counted is Counted.FILTERED and atoms[i] in facts and atoms[i] != true:
                continue
            is_proved = candidates.outcome[i] == Outcome.PROVED
            value = float(is_proved) if rule.ranked_by is RankedBy.OUTCOME else float(candidates.log_probability[i])
            value -= 100.0 * (rule.ranked_by is RankedBy.PENALISED and not is_proved)
            scores.append((atoms[i], value))
        own = next(value for atom, value in scores if atom == true)
        scores.remove((true, own))
        low, middle, high = kgreference.rank(own, [value for _, value in scores], rule.tolerance)
        low, high = {
            Ties.BOUNDS: (low, high),
            Ties.REALISTIC: (middle, middle),
            Ties.OPTIMISTIC: (low, low),
            Ties.PESSIMISTIC: (high, high),
            Ties.ROUNDED_UP: (math.ceil(middle),) * 2,
            Ties.ROUNDED_DOWN: (math.floor(middle),) * 2,
            Ties.ROUNDED_EVEN: (round(middle),) * 2,
            Ties.RANDOM: (int(rng.integers(low, high + 1)),) * 2,
        }[rule.ties]
        rows.append((query, side, len(scores) + 1, low, high))
    dtypes = np.int32, np.int8, np.uint32, np.float64, np.float64
    return Rankings(*(np.array(each, dtype) for each, dtype in zip(zip(*rows, strict=True), dtypes, strict=True)))


def explains(rule, candidates, truth, known, rankings):
    counts = count_above(candidates, truth, rule, find_known(candidates, known))
    return not len(find_unexplained(counts, counts, rule, ranks_of(rankings)))


def find_fitting(candidates, truth, known, rankings):
    return [rule for rule in RULES if explains(rule, candidates, truth, known, rankings)]


@pytest.mark.parametrize("seed", [1, pytest.param(4, marks=pytest.mark.deep)])
def test_each_rule_explains_the_ranks_that_it_gives(seed):
    _, candidates = candidates_of(seed, repeats=4)
    truth = find_truth(candidates, None, None)
    known = candidates.atom[::5].copy()
    for number, rule in enumerate(RULES):
        rankings = ranks_by(rule, candidates, truth, known, seed)
        assert explains(rule, candidates, truth, known, rankings)
        ranker = RuleRanker(rule, truth, candidates, ranks_of(rankings), known)
        for column, found in zip(rankings, ranker(candidates), strict=True):
            np.testing.assert_array_equal(found, column, err_msg=rule.describe())
        # What else explains them gives the same ranks, or any of those that ties allow.
        for other in find_fitting(candidates, truth, known, rankings) if number % 8 == 0 else ():
            if Ties.RANDOM not in (rule.ties, other.ties):
                again = ranks_by(other, candidates, truth, known)
                assert all(np.array_equal(*pair) for pair in zip(rankings, again, strict=True))
    assert len({rule.describe() for rule in RULES}) == len(RULES) == 5 * len(Counted) * len(Ties)


def test_the_first_candidate_is_the_true_one_only_where_it_stands_out():
    """Queries 0 and 1, tail side; the candidates behind the first ascend."""
    ranks = np.ones(2)
    rankings = Rankings(np.arange(2, dtype=np.int32), np.full(2, 1, np.int8), np.full(2, 3, np.uint32), ranks, ranks)

    def truth_of(*tails: int):
        atom = np.array([[0, 5, tail] for tail in tails], np.int32)
        query = np.repeat(np.array([0, 1], np.int32), 3)
        return find_truth(CandidateSet(query, np.full(6, 1, np.int8), atom), None, rankings)

    found = truth_of(4, 1, 2, 0, 3, 7)
    assert [atom[2] for atom in found.atom.tolist()] == [4, 0]
    assert found.how == ("the first of each query and side: the others ascend",)
    # Where every list ascends from its first candidate, nothing tells which one is true.
    assert not len(truth_of(1, 2, 4, 0, 3, 7).atom)


def test_the_true_triples_are_found_where_the_candidates_show_them():
    graph, candidates = candidates_of(3)
    triples = graph.queries("test")
    rankings = rank_candidates(candidates, triples)
    truth = find_truth(candidates, None, None)
    assert np.array_equal(truth.atom, triples[truth.key // 4])
    assert truth.how == ("the candidate that both sides of a query share",)
    # In another order as well.
    order = np.random.default_rng(0).permutation(len(candidates.query))
    mixed = CandidateSet(*candidates[:3]).take(order)
    assert np.array_equal(find_truth(mixed, None, None).key, truth.key)
    # With one side, the order shows them, or a label.
    tail = CandidateSet(*candidates[:3]).take(np.flatnonzero(candidates.side == 1))
    assert not len(find_truth(tail, None, None).key)
    found = find_truth(tail, None, rankings)
    assert np.array_equal(found.atom, triples[found.key // 4])
    labels = (tail.atom == triples[tail.query]).all(1)
    labelled = find_truth(tail, labels.astype(np.uint8), None)
    assert np.array_equal(labelled.key, np.unique(tail.query).astype(np.int64) * 4 + 1)
    assert np.array_equal(labelled.atom, triples[labelled.key // 4])
    assert labelled.how == ("as labelled",)
    # A query with two labels has no certain one.
    labels[np.flatnonzero(tail.query == tail.query[0])[:2]] = True
    assert np.array_equal(find_truth(tail, labels, None).key, labelled.key[labelled.key != tail.query[0] * 4 + 1])
    mixed = tail.take(np.random.default_rng(1).permutation(len(tail.query)))
    unsure = find_truth(mixed, None, rankings)
    assert np.array_equal(unsure.atom, triples[unsure.key // 4])


ATOMS = np.array([[0, 5, 4], [1, 5, 4], [0, 5, 6], [0, 5, 7]], np.int32)
"""A true triple, the same arguments of another predicate, and two corruptions."""


def test_a_true_triple_has_the_predicate_as_well_as_the_arguments():
    tails = CandidateSet(np.zeros(2, np.int32), np.full(2, 1, np.int8), ATOMS[:2])
    assert Truth(np.array([1]), ATOMS[:1]).mark(tails).tolist() == [True, False]


def test_the_only_candidate_is_the_true_one_only_if_it_is_ranked():
    tails = CandidateSet(np.arange(2, dtype=np.int32), np.full(2, 1, np.int8), ATOMS[[0, 2]])
    ranks = np.ones(1)
    first = Rankings(np.zeros(1, np.int32), np.full(1, 1, np.int8), np.ones(1, np.uint32), ranks, ranks)
    assert find_truth(tails, None, first).key.tolist() == [1]


def test_a_rank_of_random_ties_is_kept_only_if_the_number_of_ties_is_the_same():
    rule = next(each for each in RULES if each.ties is Ties.RANDOM and each.counted is not Counted.FILTERED)
    columns = np.zeros(4, np.int32), np.full(4, 1, np.int8), ATOMS, np.ones(4, np.uint32), np.ones(4, np.int8)
    one, two = (Candidates(*columns, np.zeros(4, np.uint8), np.array([0.0, 0, low, -9])) for low in (-9, 0))
    ranks = np.full(1, 2.0)
    recorded = Rankings(np.zeros(1, np.int32), np.full(1, 1, np.int8), np.full(1, 4, np.uint32), ranks, ranks)
    ranker = RuleRanker(rule, Truth(np.array([1]), ATOMS[:1]), one, ranks_of(recorded), NOTHING)
    assert ranker(one).optimistic.tolist() == [2.0]
    # With two ties, the ranks 1, 2 and 3 are possible: their harmonic mean.
    assert ranker(two).optimistic.tolist() == pytest.approx([3 / (1 + 1 / 2 + 1 / 3)])


def test_rankings_that_are_hits_whatever_their_scores_are_counted():
    assert describe_hits(np.array([10, 11])) == [
        "1 of 2 rankings has 10 candidates or fewer: each is a hit at 10, whatever its scores"
    ]
