"""Graphs drawn from a seed."""

from pathlib import Path

import pytest

from kgverify import UserError, load_graph
from kgverify.program.outcomes import Outcome
from kgverify.runs.run import Run, reference_pipeline


def test_a_seed_gives_the_same_graph_and_another_seed_another():
    assert load_graph("random:3").program.sha256 == load_graph("random:3").program.sha256
    assert load_graph("random:3").program.sha256 != load_graph("random:4").program.sha256
    assert load_graph("random:3").name == "random:3"


@pytest.mark.parametrize("seed", range(5))
def test_queries_are_provable_and_others_not(seed: int):
    run = Run(load_graph(f"random:{seed}"), num_queries=30, num_corruptions=3)
    pipeline = reference_pipeline(run)
    outcomes = pipeline.engine.prove(pipeline.draw(run.graph, "test", run.queries, 3, 0)).candidates.outcome
    assert {Outcome.PROVED, Outcome.FAILED} <= set(outcomes.tolist())
    sizes = [sum(fact.predicate == p for fact in run.graph.train) for p in run.graph.program.symbols.predicates]
    assert max(sizes) > 50


@pytest.mark.parametrize("spec", ["random:", "random:x", "random:-1"])
def test_an_invalid_seed_is_refused(spec: str):
    with pytest.raises(UserError, match="expected a seed"):
        load_graph(spec)


def test_a_random_graph_takes_no_files(tmp_path: Path):
    with pytest.raises(UserError, match="includes its own rules"):
        load_graph("random:1", rules=tmp_path / "rules.pl")
