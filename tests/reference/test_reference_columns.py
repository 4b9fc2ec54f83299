"""The reference on the columns of a large graph: the same derivations, and an error for columns that are not the file's."""

from dataclasses import replace

import numpy as np
import pytest

import kgverify as kv
from kgreference.facts import FactColumns, ListedFacts
from kgverify import Limits
from kgverify.engines.policy import SHORTEST, make_two_tower
from kgverify.engines.reference import engine as reference_program
from kgverify.errors import InternalError
from kgverify.program.atom_table import AtomTable
from kgverify.runs import fan_out
from kgverify.runs.run import Run, reference_pipeline


@pytest.fixture(autouse=True)
def every_graph_is_large(monkeypatch):
    monkeypatch.setattr(reference_program, "MOST_LISTED", 0)


def assert_equal_columns(one, other):
    for ours, theirs in zip(one, other, strict=True):
        for first, second in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("name", ["countries", "random:3"])
def test_columns_give_the_same_derivations_as_names(name, monkeypatch):
    run = Run(kv.load_graph(name), num_queries=3, num_corruptions=4)
    columns = reference_pipeline(run)
    with monkeypatch.context() as patched:
        patched.setattr(reference_program, "MOST_LISTED", 1 << 40)
        names = reference_pipeline(run)
        # Built when it is first needed.
        of_names = names.engine.program.facts
    assert type(columns.engine.program.facts) is not type(of_names)
    candidates = names.draw_for(run)
    assert_equal_columns(columns.engine.prove(candidates), names.engine.prove(candidates))


@pytest.mark.parametrize("change", ["another fact", "a fact fewer", "a fact twice", "another order"])
def test_columns_that_are_not_those_of_the_file_are_refused(change):
    program = kv.load_graph("countries").program
    facts = program.facts.copy()
    if change == "another fact":
        facts[-1, 2] = (facts[-1, 2] + 1) % len(program.symbols.constants)
    elif change == "a fact fewer":
        facts = facts[:-1]
    elif change == "a fact twice":
        facts[1] = facts[0]
    else:
        facts[[0, 1]] = facts[[1, 0]]
    with pytest.raises(InternalError, match="are not those of its file"):
        reference_program.build_reference_program(replace(program, facts=facts))


def test_atoms_are_among_the_columns_or_not():
    facts = FactColumns(*np.array([[0, 0, 1], [1, 2, 1], [1, 1, 2]]))
    others = [(0, 1, 2), (1, 1, 1), (2, 1, 1), (0, -1, 1), (0, 1, -1)]
    assert facts.is_disjoint([])
    assert facts.is_disjoint(others)
    for fact in facts:
        assert facts.find(fact) >= 0
        assert not facts.is_disjoint([*others, fact])


def test_listed_facts_are_found_in_their_own_order():
    facts = ListedFacts([(1, 5, 6), (0, 2, 3), (1, 5, 4), (1, 2, 6), (0, 2, 3)])
    assert list(facts) == [(1, 5, 6), (0, 2, 3), (1, 5, 4), (1, 2, 6)]
    assert [facts.find(fact) for fact in facts] == list(range(len(facts)))
    assert facts.is_disjoint([(1, 5, 5)])
    assert (list(facts.with_predicate(1)), list(facts.with_predicate(2))) == ([0, 2, 3], [])
    assert (list(facts.with_first(1, 5)), list(facts.with_first(0, 5))) == ([0, 2], [])
    assert (facts.with_second(1, 6), facts.with_second(0, 6)) == ([0, 3], [])


@pytest.mark.parametrize(
    ("rows", "is_numbered"),
    [
        ([[0, 0, 1], [1, 1, 2]], True),
        ([[0, 0, 1], [1, 2, 1]], True),
        ([[0, 0, 0], [1, 2, 1]], False),
        ([[1, 0, 1], [0, 1, 2]], False),
        ([[0, 0, 1], [0, 1, 2]], False),
    ],
)
def test_predicates_and_constants_are_numbered_apart(rows, is_numbered):
    assert AtomTable(("p", "q"), ("a", "b", "c"), np.array(rows, np.int32)).has_numbered_names == is_numbered


def test_a_repeated_fact_is_one_fact_of_the_columns():
    graph = kv.load_graph("countries")
    twice = replace(graph, train=(*graph.train, *graph.train[:5]))
    built = reference_program.build_reference_program(twice.program)
    assert list(built.facts) == list(map(tuple, graph.program.facts.tolist()))


@pytest.mark.parametrize("has_network", [True, False])
def test_processes_beside_a_costly_evaluation_derive_the_same_and_a_small_network_needs_none(monkeypatch, has_network):
    monkeypatch.setattr(fan_out.os, "sched_getaffinity", lambda _: range(4))
    graph = kv.load_graph("countries")
    policy = SHORTEST
    if has_network:
        policy = make_two_tower(graph.program, Limits(), seed=0, embedding=8, hidden=8, blocks=1)
    run = Run(graph, policy=policy, num_queries=3, num_corruptions=20)
    here = reference_pipeline(run)
    with fan_out.reference_beside(run, 3 * fan_out._NUM_OF_COSTLY) as beside:
        assert type(beside.engine) is type(here.engine)
    monkeypatch.setattr(fan_out, "_WIDE" if has_network else "_LARGE", 8 * 8 if has_network else 0)
    candidates = here.draw_for(run)
    with fan_out.reference_beside(run, 3 * fan_out._NUM_OF_COSTLY) as beside:
        assert type(beside.engine) is not type(here.engine)
        actual = beside.engine.prove(candidates)
    assert_equal_columns(actual, here.engine.prove(candidates))
