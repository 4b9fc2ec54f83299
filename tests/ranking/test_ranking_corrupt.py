"""Corruptions: the reference's own draw, whatever the chunks; filtered; without replacement."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ranking_graphs import make_graph

from kgverify import KnowledgeGraph, UserError, load_graph
from kgverify.engines.reference.ranking import draw_candidates as draw_by_reference
from kgverify.program.atoms import NamedAtom
from kgverify.program.outcomes import Side
from kgverify.ranking import draw
from kgverify.ranking.draw import (
    ALL,
    BLOCK,
    BOTH_SIDES,
    count_candidates,
    draw_candidates,
    draw_eligible,
    find_eligible_entities,
    may_be_drawn,
    mix,
)
from kgverify.trace.model.columns import CandidateSet


def rows_of(candidates: CandidateSet) -> list[tuple[int, ...]]:
    return [tuple(row) for row in np.column_stack((candidates.query, candidates.side, candidates.atom)).tolist()]


def groups_of(candidates: CandidateSet) -> dict[tuple[int, int], list[list[int]]]:
    groups: dict[tuple[int, int], list[list[int]]] = {}
    for query, side, *atom in rows_of(candidates):
        groups.setdefault((query, side), []).append(atom)
    return groups


def assert_same_draw(graph: KnowledgeGraph, queries: range, num_corruptions: int, seed: int) -> None:
    ours = draw_candidates(graph, "test", queries, num_corruptions, seed)
    theirs = draw_by_reference(graph, "test", queries, num_corruptions, seed)
    for column, other in zip(ours, theirs, strict=True):
        assert column.dtype == other.dtype
        np.testing.assert_array_equal(column, other)


@pytest.mark.parametrize("num_corruptions", [0, 7, ALL])
@pytest.mark.parametrize("seed", [0, 12345, 2**63])
def test_the_draw_on_countries_is_that_of_the_reference(num_corruptions: int, seed: int):
    assert_same_draw(load_graph("countries"), range(3), num_corruptions, seed)


@settings(deadline=None)
@given(
    graph_seed=st.integers(0, 400),
    seed=st.integers(0, 2**64 - 1),
    num_corruptions=st.sampled_from([ALL, 0, 1, 2, 5, 100]),
)
def test_the_draw_on_random_graphs_is_that_of_the_reference(graph_seed: int, seed: int, num_corruptions: int):
    graph = make_graph(graph_seed)
    assert_same_draw(graph, range(len(graph.test)), num_corruptions, seed)


@settings(deadline=None)
@given(graph_seed=st.integers(0, 400), num_corruptions=st.integers(0, 6))
def test_drawing_query_by_query_and_side_by_side_is_drawing_all_at_once(graph_seed: int, num_corruptions: int):
    graph = make_graph(graph_seed)
    queries = range(len(graph.test))
    together = rows_of(draw_candidates(graph, "test", queries, num_corruptions, 3))
    one_by_one = [
        row
        for query in queries
        for side in BOTH_SIDES
        for row in rows_of(draw_candidates(graph, "test", [query], num_corruptions, 3, [side]))
    ]
    assert together == one_by_one
    backwards = rows_of(draw_candidates(graph, "test", queries[::-1], num_corruptions, 3))
    assert sorted(together) == sorted(backwards)


@settings(deadline=None)
@given(graph_seed=st.integers(0, 400), num_corruptions=st.sampled_from([ALL, 1, 3]))
def test_corruptions_are_unknown_distinct_of_the_domain_and_ascend_after_the_true_triple(
    graph_seed: int, num_corruptions: int
):
    graph = make_graph(graph_seed)
    known = set(map(tuple, graph.known_triples.tolist()))
    triples = graph.queries("test")
    groups = groups_of(draw_candidates(graph, "test", range(len(triples)), num_corruptions, 9))
    assert groups.keys() == {(query, int(side)) for query in range(len(triples)) for side in BOTH_SIDES}
    for (query, side), (true, *corruptions) in groups.items():
        assert true == triples[query].tolist()
        assert not {tuple(each) for each in corruptions} & known
        entities = [each[1 + side] for each in corruptions]
        assert entities == sorted(set(entities))
        assert set(entities) <= set(graph.argument_domain(true[0], Side(side)).tolist())
        assert all(each[0] == true[0] and each[2 - side] == true[2 - side] for each in corruptions)
        eligible = len(find_eligible_entities(graph, triples[query], Side(side)))
        assert len(corruptions) == (eligible if num_corruptions == ALL else min(num_corruptions, eligible))


def make_wide_graph() -> KnowledgeGraph:
    """A graph of some hundred constants, so that few of many entities are drawn."""
    rng = random.Random(0)

    def triples(num: int) -> tuple[NamedAtom, ...]:
        names = [(rng.choice("ppppqr"), f"c{rng.randrange(300)}", f"c{rng.randrange(300)}") for _ in range(num)]
        return tuple(NamedAtom(*each) for each in names)

    return KnowledgeGraph("wide", train=triples(2000), test=triples(60))


@pytest.mark.parametrize("num_corruptions", [1, 9, 100, 250, 299, ALL])
@pytest.mark.parametrize("block", [1, 1000, BLOCK])
def test_blocks_of_queries_draw_the_entities_of_lowest_key(
    monkeypatch: pytest.MonkeyPatch, num_corruptions: int, block: int
):
    monkeypatch.setattr(draw, "BLOCK", block)
    graph = make_wide_graph()
    triples = graph.queries("test")
    queries = [*range(len(triples)), 7, 3]
    candidates = draw_candidates(graph, "test", queries, num_corruptions, 5)
    expected = []
    for query in queries:
        for side in BOTH_SIDES:
            entities = find_eligible_entities(graph, triples[query], side)
            key = mix(mix(mix(np.array([5], np.uint64)) ^ np.uint64(query)) ^ np.uint64(side))
            order = np.argsort(mix(key ^ entities.astype(np.uint64)))
            drawn = np.sort(entities[order[: len(entities) if num_corruptions == ALL else num_corruptions]])
            expected += [(query, side, entity) for entity in [triples[query, 1 + side], *drawn]]
    found = np.where(candidates.side == Side.HEAD, candidates.atom[:, 1], candidates.atom[:, 2])
    assert list(zip(candidates.query, candidates.side, found, strict=True)) == expected
    counts = count_candidates(graph, "test", queries, num_corruptions)
    assert counts.sum() == len(expected)
    assert counts[-1] == counts[3] == sum(row[0] == 3 for row in expected) / 2


def test_a_row_whose_keys_are_higher_than_expected_is_considered_as_a_whole():
    graph = make_wide_graph()
    for seed in range(40):
        together = draw_candidates(graph, "test", range(60), 2, seed)
        assert set(map(len, groups_of(together).values())) == {3}


@pytest.mark.parametrize("seed", [2**32 + 7, 2**64 - 1])
@pytest.mark.parametrize("num_corruptions", [1, 7, 290])
def test_the_draw_of_many_queries_and_large_seeds_is_that_of_the_reference(seed: int, num_corruptions: int):
    """The queries have indices beyond 255, and few rows have 290 eligible entities."""
    graph = KnowledgeGraph("many", **wide_triples())
    assert_same_draw(graph, range(250, len(graph.test)), num_corruptions, seed)


def wide_triples() -> dict[str, tuple[NamedAtom, ...]]:
    rng = random.Random(3)

    def triples(num: int) -> tuple[NamedAtom, ...]:
        return tuple(NamedAtom("p", f"c{rng.randrange(300)}", f"c{rng.randrange(300)}") for _ in range(num))

    return {"train": triples(2000), "valid": (), "test": triples(280)}


def test_another_seed_draws_others():
    graph = load_graph("countries")
    assert rows_of(draw_candidates(graph, "test", [0], 5, 0)) != rows_of(draw_candidates(graph, "test", [0], 5, 1))


def test_fewer_corruptions_are_among_more():
    graph = load_graph("countries")
    draws = [set(rows_of(draw_candidates(graph, "test", [0, 1], k, 0))) for k in (0, 2, 9, ALL)]
    assert draws[0] < draws[1] < draws[2] < draws[3]


def test_mix_is_the_splitmix64_of_its_authors():
    """The first outputs of the generator seeded with 0, as published (prng.di.unimi.it)."""
    states = np.array([0, 0x9E3779B97F4A7C15], np.uint64)
    assert [f"{x:016x}" for x in mix(states).tolist()] == ["e220a8397b1dcdaf", "6e789e6aa1b965f4"]


def test_a_number_of_corruptions_below_all_is_refused():
    with pytest.raises(UserError, match=r"corruptions.*found -2"):
        draw_candidates(load_graph("countries"), "test", [0], -2, 0)


@pytest.mark.parametrize("query", [-1, 24])
def test_a_query_that_the_split_lacks_is_refused(query: int):
    with pytest.raises(UserError, match=rf"expected a query from 0 to 23, found {query}"):
        draw_candidates(load_graph("countries"), "test", [query], 1, 0)


def test_no_query_gives_no_candidate():
    candidates = draw_candidates(load_graph("countries"), "test", [], 5, 0)
    assert [len(column) for column in candidates] == [0, 0, 0]
    assert candidates.atom.shape == (0, 3)


@settings(deadline=None)
@given(graph_seed=st.integers(0, 400))
def test_exactly_the_corruptions_may_be_drawn(graph_seed: int):
    graph = make_graph(graph_seed)
    triples = graph.queries("test")
    for side in BOTH_SIDES:
        sides = np.full(len(triples), side, np.int64)
        num, atoms = draw_eligible(graph, triples, sides)
        for triple, found in zip(triples, np.split(atoms, np.cumsum(num)[:-1]), strict=True):
            np.testing.assert_array_equal(found[:, 1 + side], find_eligible_entities(graph, triple, side))
            every = np.tile(triple, (len(graph.program.symbols.constants), 1))
            every[:, 1 + side] = np.arange(len(every))
            is_found = np.isin(every[:, 1 + side], found[:, 1 + side])
            np.testing.assert_array_equal(may_be_drawn(graph, every, np.full(len(every), side)), is_found)
            assert (found[:, [0, 2 - side]] == triple[[0, 2 - side]]).all()


def test_threads_draw_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = load_graph("countries")
    alone = draw_candidates(graph, "test", range(24), 5, 1)
    monkeypatch.setattr(draw, "BLOCK", 64)
    monkeypatch.setattr(draw, "_FEW", 1)
    monkeypatch.setattr(draw, "_MANY", 0)
    monkeypatch.setattr(draw, "count_threads", lambda: 3)
    for one, other in zip(alone, draw_candidates(graph, "test", range(24), 5, 1), strict=True):
        np.testing.assert_array_equal(one, other)
