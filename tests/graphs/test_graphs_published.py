"""The embedded graph, and published datasets, which are not part of kgverify: `$KGVERIFY_DATA` says where they are."""

import os
import re
from collections import Counter
from importlib import resources

import pytest
from make_countries import render_countries

import kgverify as kv

FOLDER = resources.files("kgverify.graphs.embedded") / "countries"
TABLE = (FOLDER / "countries.tsv").read_text(encoding="utf-8")
needs_data = pytest.mark.skipif("KGVERIFY_DATA" not in os.environ, reason="KGVERIFY_DATA is not set")


def test_the_countries_graph_has_its_published_sizes() -> None:
    graph = kv.load_graph("countries")
    counts = {"locatedInSR": 22, "locatedInCS": 201, "locatedInCR": 128, "neighborOf": 648}
    assert Counter(atom.predicate for atom in graph.train) == counts
    assert (len(graph.train), len(graph.valid), len(graph.test), len(graph.rules)) == (999, 24, 24, 3)
    sizes = {name: len(members) for name, members in graph.domains.items()}
    assert sizes == {"regions": 5, "subregions": 22, "countries": 249}
    names = graph.program.symbols.constants
    assert len(names) == 276
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", name) for name in names)
    assert graph.warnings == ()


def test_the_files_of_the_countries_graph_are_those_of_its_table_byte_for_byte() -> None:
    for name, text in render_countries(TABLE).items():
        assert (FOLDER / name).read_bytes() == text.encode("utf-8"), name


def test_the_rules_of_the_countries_graph_prove_all_test_triples_but_one() -> None:
    """The exception is right: Papua New Guinea's only land neighbour is in Asia."""
    graph = kv.load_graph("countries")
    facts = {name: [(a, b) for p, a, b in graph.train if p == name] for name in graph.program.symbols.predicates}
    region_of = dict(facts["locatedInSR"])
    proved = {*facts["locatedInCR"], *((country, region_of[part]) for country, part in facts["locatedInCS"])}
    proved |= {(a, region) for a, b in facts["neighborOf"] for country, region in list(proved) if country == b}
    queries = {(atom.first, atom.second) for atom in graph.test + graph.valid}
    assert queries - proved == {("papua_new_guinea", "oceania")}


@pytest.mark.data
@needs_data
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("name", "num_facts", "num_test", "num_constants", "num_predicates", "num_rules"),
    [
        ("countries_s3", 983, 24, 271, 4, 2),
        ("family", 19_845, 5_626, 2_968, 12, 87),
        ("wn18rr", 86_835, 2_924, 40_559, 11, 32),
    ],
)
def test_a_published_dataset_has_its_published_sizes(
    name: str, num_facts: int, num_test: int, num_constants: int, num_predicates: int, num_rules: int
) -> None:
    graph = kv.load_graph(name)
    symbols = graph.program.symbols
    assert (len(graph.program.facts), len(graph.queries("test")), len(graph.rules)) == (num_facts, num_test, num_rules)
    assert (len(symbols.constants), len(symbols.predicates)) == (num_constants, num_predicates)
    assert all(rule.name and rule.confidence is not None for rule in graph.rules)
    # The warnings are about the splits: some queries are known from train.
    assert all(re.match(r"(?:valid|test)\.txt: of |.*not read: rules_amie", each) for each in graph.warnings)
    if name == "countries_s3":
        located_in = symbols.predicate_ids["locatedInCR"]
        assert [len(graph.argument_domain(located_in, side)) for side in (kv.Side.HEAD, kv.Side.TAIL)] == [243, 5]
