"""The reference on the columns of a large graph: the same derivations, and an error for columns that are not the file's."""

from dataclasses import replace

import numpy as np
import pytest

import kgverify as kv
from kgverify.engines.reference import engine as reference_program
from kgverify.errors import InternalError
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


def test_a_repeated_fact_is_one_fact_of_the_columns():
    graph = kv.load_graph("countries")
    twice = replace(graph, train=(*graph.train, *graph.train[:5]))
    built = reference_program.build_reference_program(twice.program)
    assert list(built.facts) == list(map(tuple, graph.program.facts.tolist()))
