import re
import time
from collections import Counter
from importlib import resources

import pytest
from make_countries import parse_table, render_countries

from kgverify import KnowledgeGraph, load_graph
from kgverify.graphs.embedded import list_embedded

FOLDER = resources.files("kgverify.graphs.embedded") / "countries"


@pytest.fixture(scope="module")
def graph() -> KnowledgeGraph:
    return load_graph("countries")


def region_facts(graph: KnowledgeGraph) -> set[tuple[str, str]]:
    return {(str(a), str(b)) for p, a, b in graph.train if p == "locatedInCR"}


def test_the_countries_graph_has_its_published_sizes(graph: KnowledgeGraph) -> None:
    assert Counter(atom.predicate for atom in graph.train) == {
        "locatedInSR": 22,
        "locatedInCS": 201,
        "locatedInCR": 128,
        "neighborOf": 648,
    }
    assert (len(graph.train), len(graph.valid), len(graph.test), len(graph.rules)) == (999, 24, 24, 3)
    assert len(graph.program.symbols.constants) == 276
    assert {name: len(members) for name, members in graph.domains.items()} == {
        "regions": 5,
        "subregions": 22,
        "countries": 249,
    }
    assert graph.warnings == ()


def test_the_files_of_the_graph_are_those_of_its_table_byte_for_byte() -> None:
    for name, text in render_countries((FOLDER / "countries.tsv").read_text(encoding="utf-8")).items():
        assert (FOLDER / name).read_bytes() == text.encode("utf-8"), name


def test_a_held_out_country_has_no_subregion_and_its_neighbours_have_no_region(graph: KnowledgeGraph) -> None:
    table = parse_table((FOLDER / "countries.tsv").read_text(encoding="utf-8"))
    held_out = {str(atom.first) for atom in graph.test + graph.valid}
    assert len(held_out) == 48
    with_subregion = {str(a) for p, a, _ in graph.train if p == "locatedInCS"}
    with_region = {country for country, _ in region_facts(graph)}
    neighbours = {other for country in held_out for other in table.neighbours[country]}
    assert set(table.subregions) - with_subregion == held_out
    assert set(table.subregions) - with_region == held_out | neighbours
    assert all(set(table.neighbours[country]) - held_out for country in held_out)


def test_names_are_ascii_snake_case(graph: KnowledgeGraph) -> None:
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", name) for name in graph.program.symbols.constants)


def test_the_rules_prove_all_test_triples_but_one(graph: KnowledgeGraph) -> None:
    """The exception is right: Papua New Guinea's only land neighbour is in Asia."""
    regions_of_subregions = {str(a): str(b) for p, a, b in graph.train if p == "locatedInSR"}
    proved = region_facts(graph) | {
        (str(a), regions_of_subregions[str(b)]) for p, a, b in graph.train if p == "locatedInCS"
    }
    neighbours = [(str(a), str(b)) for p, a, b in graph.train if p == "neighborOf"]
    proved |= {(a, region) for a, b in neighbours for country, region in list(proved) if country == b}
    queries = {(str(atom.first), str(atom.second)) for atom in graph.test + graph.valid}
    assert queries - proved == {("papua_new_guinea", "oceania")}


def test_a_border_in_one_row_only_is_refused() -> None:
    with pytest.raises(ValueError, match="the border of a and b is not in both rows"):
        parse_table("s\tr\na\ts\tb\nb\ts\t-\n")


def test_an_unknown_subregion_is_refused() -> None:
    with pytest.raises(ValueError, match="a: unknown subregion t"):
        parse_table("s\tr\na\tt\t-\n")


def test_the_embedded_graphs_load_at_once() -> None:
    assert list_embedded() == ("countries",)

    def measure() -> float:
        start = time.process_time()
        load_graph("countries").program.sha256  # noqa: B018  reading the attribute is the test
        return time.process_time() - start

    assert min(measure() for _ in range(5)) < 0.05
