import numpy as np
import pytest

from kgverify import KnowledgeGraph, UserError
from kgverify.graphs.rules import parse_rules
from kgverify.program.atoms import NamedAtom
from kgverify.program.outcomes import Side

IN, NEAR = "in", "near"
TRAIN = (NamedAtom(IN, "paris", "france"), NamedAtom(NEAR, "lyon", "paris"), NamedAtom(NEAR, "lyon", "paris"))
VALID = (NamedAtom(IN, "lyon", "france"),)
TEST = (NamedAtom(IN, "bonn", "germany"), NamedAtom(IN, "bonn", "germany"), NamedAtom(IN, "paris", "france"))


def build(**changes: object) -> KnowledgeGraph:
    return KnowledgeGraph(**({"name": "toy", "train": TRAIN, "valid": VALID, "test": TEST} | changes))


def domain(graph: KnowledgeGraph, predicate: str, side: Side) -> list[str]:
    symbols = graph.program.symbols
    ids = graph.argument_domain(symbols.predicate_ids[predicate], side)
    assert ids.dtype == np.int32
    assert list(ids) == sorted(ids)
    return [symbols.constants[i] for i in ids]


def test_symbols_are_numbered_by_facts_then_rules_then_queries_then_domains() -> None:
    rules = parse_rules("near(X,'rome') -> from(X,'italy')", "rules.txt").rules
    graph = build(rules=rules, domains={"places": ("oslo", "bonn", "bern")})
    assert graph.program.symbols.predicates == (IN, NEAR, "from")
    assert graph.program.symbols.constants == (
        "paris", "france", "lyon", "italy", "rome", "bonn", "germany", "oslo", "bern",
    )  # fmt: skip


def test_a_fact_knows_its_line() -> None:
    graph = build(facts_file="train.txt", fact_lines=(1, 4, 5))
    assert (graph.program.facts_file, graph.program.fact_lines.tolist()) == ("train.txt", [1, 4])


def test_queries_are_in_file_order_with_repetitions() -> None:
    queries = build().queries("test")
    assert queries.dtype == np.int32
    assert queries.tolist() == [[0, 3, 4], [0, 3, 4], [0, 0, 1]]


def test_known_triples_are_those_of_all_splits_once() -> None:
    known = build().known_triples
    assert known.dtype == np.int32
    assert known.tolist() == [[0, 0, 1], [0, 2, 1], [0, 3, 4], [1, 2, 0]]


def test_a_graph_without_test_has_known_triples_and_reports_missing_queries() -> None:
    graph = build(test=())
    assert len(graph.known_triples) == 3
    with pytest.raises(UserError) as caught:
        graph.queries("test")
    error = caught.value
    assert (error.where, error.message) == ("toy", "expected test triples, found none")
    assert error.fix == "add a test file to the graph's folder, or give one with test"


def test_an_unknown_split_is_an_error_with_a_fix() -> None:
    with pytest.raises(UserError) as caught:
        build().queries("vaild")
    assert caught.value.message == "expected train, valid or test, found 'vaild'"
    assert caught.value.fix == "did you mean 'valid'?"


def test_without_domains_an_argument_ranges_over_all_constants() -> None:
    assert domain(build(), IN, Side.TAIL) == ["paris", "france", "lyon", "bonn", "germany"]


def test_an_argument_ranges_over_the_domains_of_what_is_seen_in_any_split() -> None:
    graph = build(
        domains={
            "cities": ("paris", "lyon", "bonn", "bern"),
            "countries": ("germany", "france"),
            "more": ("oslo",),
        }
    )
    assert domain(graph, IN, Side.HEAD) == ["paris", "lyon", "bonn", "bern"]
    assert domain(graph, IN, Side.TAIL) == ["france", "germany"]
    assert domain(graph, NEAR, Side.TAIL) == ["paris", "lyon", "bonn", "bern"]


def test_an_argument_ranges_over_every_domain_that_it_touches() -> None:
    graph = build(domains={"west": ("paris", "lyon", "brest"), "east": ("bonn", "jena"), "south": ("rome",)})
    assert domain(graph, IN, Side.HEAD) == ["paris", "lyon", "bonn", "brest", "jena"]


def test_one_seen_constant_without_domain_frees_the_argument() -> None:
    graph = build(domains={"cities": ("paris", "lyon"), "countries": ("germany", "france")})
    assert domain(graph, IN, Side.HEAD) == list(graph.program.symbols.constants)
    assert domain(graph, NEAR, Side.HEAD) == ["paris", "lyon"]


def test_an_invalid_side_is_a_value_error() -> None:
    with pytest.raises(ValueError, match=r"expected Side.HEAD or Side.TAIL, found <Side.NONE: 2>"):
        build().argument_domain(0, Side.NONE)


def test_the_arrays_of_a_graph_cannot_be_written() -> None:
    graph = build(domains={"cities": ("paris",)})
    for array in (graph.queries("test"), graph.known_triples, graph.argument_domain(0, Side.HEAD)):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
