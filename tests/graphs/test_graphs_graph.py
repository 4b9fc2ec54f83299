"""A knowledge graph in ids: the order of its symbols, its queries, its known triples and the domains of arguments."""

import numpy as np
import pytest
from graph_files import read

import kgverify as kv

FILES = {
    "train.txt": "% the facts\nin(paris,france).\n\n\nnear(lyon,paris). near(lyon,paris).\n",
    "valid.txt": "in(lyon,france).\n",
    "test.txt": "in(bonn,germany).\nin(bonn,germany).\nin(paris,france).\n",
}


def build(domains: str = "", **files: str) -> kv.KnowledgeGraph:
    return read(FILES | ({"domains.txt": domains} if domains else {}) | {f"{k}.txt": v for k, v in files.items()})


def list_domain(graph: kv.KnowledgeGraph, predicate: str, side: kv.Side) -> list[str]:
    symbols = graph.program.symbols
    ids = graph.argument_domain(symbols.predicate_ids[predicate], side)
    assert ids.dtype == np.int32
    assert list(ids) == sorted(ids)
    return [symbols.constants[i] for i in ids]


def test_symbols_are_numbered_by_facts_then_rules_then_queries_then_domains() -> None:
    symbols = build("places oslo bonn bern", rules="near(X,'rome') -> from(X,'italy')").program.symbols
    assert symbols.predicates == ("in", "near", "from")
    assert symbols.constants == ("paris", "france", "lyon", "italy", "rome", "bonn", "germany", "oslo", "bern")


def test_a_fact_knows_its_first_line_and_queries_are_repeated_as_in_their_file() -> None:
    graph = build()
    assert (graph.program.facts_file, graph.program.fact_lines.tolist()) == ("train.txt", [2, 5])
    assert graph.queries("test").dtype == np.int32
    assert graph.queries("test").tolist() == [[0, 3, 4], [0, 3, 4], [0, 0, 1]]


def test_known_triples_are_those_of_all_splits_once() -> None:
    known = build().known_triples
    assert known.dtype == np.int32
    assert known.tolist() == [[0, 0, 1], [0, 2, 1], [0, 3, 4], [1, 2, 0]]


@pytest.mark.parametrize(
    ("split", "message", "fix"),
    [
        ("test", "expected test triples, found none", "add a test file to the graph's folder, or give one with test"),
        ("vaild", "expected train, valid or test, found 'vaild'", "did you mean 'valid'?"),
    ],
)
def test_a_split_that_is_missing_or_unknown_is_refused(split: str, message: str, fix: str) -> None:
    graph = build(test="")
    assert len(graph.known_triples) == 3
    with pytest.raises(kv.UserError) as caught:
        graph.queries(split)  # type: ignore[arg-type]
    assert (caught.value.message, caught.value.fix) == (message, fix)


def test_an_argument_ranges_over_all_domains_that_it_touches_and_over_everything_beside_them() -> None:
    every = ["paris", "france", "lyon", "bonn", "germany"]
    cities, countries = "cities paris lyon bonn bern\n", "countries germany france\n"
    west, both = "west paris lyon brest\neast bonn jena\nsouth rome\n", f"{cities}{countries}more oslo\n"
    for domains, predicate, side, expected in (
        ("", "in", kv.Side.TAIL, every),
        (both, "in", kv.Side.HEAD, ["paris", "lyon", "bonn", "bern"]),
        (both, "in", kv.Side.TAIL, ["france", "germany"]),
        (both, "near", kv.Side.TAIL, ["paris", "lyon", "bonn", "bern"]),
        (west, "in", kv.Side.HEAD, ["paris", "lyon", "bonn", "brest", "jena"]),
        # One entity that is in no domain frees the argument.
        (f"cities paris lyon\n{countries}", "in", kv.Side.HEAD, every),
        (f"cities paris lyon\n{countries}", "near", kv.Side.HEAD, ["paris", "lyon"]),
    ):
        assert list_domain(build(domains), predicate, side) == expected


def test_an_invalid_side_is_a_value_error_and_arrays_cannot_be_written() -> None:
    graph = build("cities paris")
    with pytest.raises(ValueError, match=r"expected Side.HEAD or Side.TAIL, found <Side.NONE: 2>"):
        graph.argument_domain(0, kv.Side.NONE)
    for array in (graph.queries("test"), graph.known_triples, graph.argument_domain(0, kv.Side.HEAD)):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
