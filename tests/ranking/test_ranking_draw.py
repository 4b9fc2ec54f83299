"""Corruptions: the draw of the reference, in any chunks and blocks, filtered, without replacement, of any size."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ranking_graphs import make_graph, make_large_graph

import kgreference
import kgverify as kv
from kgverify.engines.reference.ranking import draw_candidates as draw_by_reference
from kgverify.ranking import draw
from kgverify.ranking.draw import (
    ALL,
    BLOCK,
    BOTH_SIDES,
    count_candidates,
    draw_candidates,
    draw_eligible,
    draw_entities,
    may_be_drawn,
)

SEEDS = [0, 2**32 + 7, 2**63, 2**64 - 1]
QUERIES = (0, 1, 255, 256, 8_192, 32_767, 32_768, 65_535, 65_536, 70_000)


def rows_of(candidates: Any) -> list[tuple[int, ...]]:
    return [tuple(row) for row in np.column_stack((candidates.query, candidates.side, candidates.atom)).tolist()]


def assert_same_draw(graph: kv.KnowledgeGraph, queries: Any, num_corruptions: int, seed: int, *sides: Any) -> None:
    ours = draw_candidates(graph, "test", queries, num_corruptions, seed, *sides)
    for column, other in zip(
        ours, draw_by_reference(graph, "test", queries, num_corruptions, seed, *sides), strict=True
    ):
        assert column.dtype == other.dtype
        np.testing.assert_array_equal(column, other)
    if not sides:
        counts = count_candidates(graph, "test", queries, num_corruptions)
        assert counts.tolist() == [int((ours.query == query).sum()) for query in queries]


@settings(max_examples=60)
@given(st.integers(0, 400), st.integers(0, 2**64 - 1), st.sampled_from([ALL, 0, 1, 2, 5, 100]))
def test_the_draw_on_random_graphs_is_that_of_the_reference(graph_seed: int, seed: int, num_corruptions: int) -> None:
    graph = make_graph(graph_seed)
    assert_same_draw(graph, range(len(graph.test)), num_corruptions, seed)


def make_wide_graph() -> kv.KnowledgeGraph:
    """A graph of some hundred constants and queries, so that few of many entities are drawn."""
    rng = np.random.default_rng(0)

    def triples(num: int) -> tuple[kv.NamedAtom, ...]:
        names = zip(rng.choice(list("ppppqr"), num), rng.integers(0, 300, (num, 2)), strict=True)
        return tuple(kv.NamedAtom(str(p), f"c{a}", f"c{b}") for p, (a, b) in names)

    return kv.KnowledgeGraph("wide", train=triples(2000), test=triples(280))


@pytest.mark.parametrize("num_corruptions", [1, 9, 250, ALL])
@pytest.mark.parametrize("block", [1, 1000, BLOCK])
def test_blocks_and_threads_draw_the_same(monkeypatch: pytest.MonkeyPatch, num_corruptions: int, block: int) -> None:
    monkeypatch.setattr(draw, "BLOCK", block)
    if block == 1000:
        monkeypatch.setattr(draw, "_FEW", 1)
        monkeypatch.setattr(draw, "_MANY", 0)
        monkeypatch.setattr(draw, "count_threads", lambda: 3)
    graph = make_wide_graph()
    for seed in SEEDS[:2]:
        assert_same_draw(graph, [*range(240, 280), 7, 3], num_corruptions, seed)


@pytest.mark.parametrize(("num_corruptions", "seed"), [(3, SEEDS[1]), (25, SEEDS[3]), (2, SEEDS[2]), (ALL, 0)])
def test_a_large_graph_has_the_draw_of_the_reference(num_corruptions: int, seed: int) -> None:
    """Its queries, entities and predicates are beyond 2^8, 2^15 and 2^16."""
    graph = make_large_graph(QUERIES)
    assert_same_draw(graph, QUERIES[:-1], num_corruptions, seed)
    # The last query is of a predicate whose arguments may be any entity.
    assert_same_draw(graph, QUERIES[-1:], num_corruptions, seed, [kv.Side.TAIL])


class Dense:
    """A graph of one triple, whose argument may be any of 257 entities."""

    known_triples = np.zeros((1, 3), np.int32)

    def argument_domain(self, predicate: int, side: kv.Side) -> Any:
        return np.arange(257, dtype=np.int32)


def test_the_entities_of_lowest_key_are_drawn_also_if_the_first_limit_lets_too_few_pass() -> None:
    # A key of which one entity passes the first limit where two are wanted, and others.
    for key in (153_392_128, *range(40)):
        triple, side = np.zeros((1, 3), np.int32), np.zeros(1, np.int64)
        num, entities = draw_entities(Dense(), triple, np.array([key], np.uint64), side, 2)  # type: ignore[arg-type]
        lowest = sorted(range(1, 257), key=lambda entity: kgreference.mix(key ^ entity))[:2]
        assert (num.tolist(), entities.tolist()) == ([2], sorted(lowest)), key


def test_exactly_the_corruptions_may_be_drawn() -> None:
    for seed in range(30):
        graph = make_graph(seed)
        triples, symbols = graph.queries("test"), graph.program.symbols
        known = {*map(tuple, graph.known_triples.tolist())}
        for side in BOTH_SIDES:
            num, atoms = draw_eligible(graph, triples, np.full(len(triples), side, np.int64))
            for triple, found in zip(triples, np.split(atoms, np.cumsum(num)[:-1]), strict=True):
                every = np.tile(triple, (len(symbols.constants), 1))
                every[:, 1 + side] = np.arange(len(every))
                domain = graph.argument_domain(int(triple[0]), side).tolist()
                expected = [tuple(row) not in known and row[1 + side] in domain for row in every.tolist()]
                np.testing.assert_array_equal(may_be_drawn(graph, every, np.full(len(every), side)), expected)
                np.testing.assert_array_equal(found, every[expected])


@pytest.mark.parametrize(
    ("query", "num_corruptions", "message"),
    [(0, -2, r"corruptions.*found -2"), (-1, 1, "from 0 to 23, found -1"), (24, 1, "from 0 to 23, found 24")],
)
def test_a_draw_that_does_not_exist_is_refused(query: int, num_corruptions: int, message: str) -> None:
    with pytest.raises(kv.UserError, match=message):
        draw_candidates(kv.load_graph("countries"), "test", [query], num_corruptions, 0)
