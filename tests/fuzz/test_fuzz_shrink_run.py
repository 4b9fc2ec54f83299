"""Shrinking on a real graph: the proof slice leaves out most facts, keeps what a cap counts, and few runs are taken."""

import os

import pytest
import torch

from kgverify.errors import UserError
from kgverify.faults.plant import compiled_pipeline_with_faults
from kgverify.fuzz.check import judge
from kgverify.fuzz.engine_spec import EngineSpec, make_pipeline
from kgverify.fuzz.shrink_run import engines_of, graph_of, shrink_divergence, shrink_saved
from kgverify.harness.run import Run, load_policy, reference_pipeline
from kgverify.harness.verify import verify
from kgverify.kg.load import load_graph
from kgverify.logic.limits import Limits


def verified(graph, fault, *, queries=1, corruptions=3, policy="shortest", lockstep=False):
    limits = Limits()
    run = Run(graph, limits, load_policy(policy, graph, limits, 0), num_queries=queries, num_corruptions=corruptions)
    actual = compiled_pipeline_with_faults(run, [fault], mode="eager", slots=4)
    return verify(run, reference_pipeline(run), actual, lockstep=lockstep, check_determinism=False)


@pytest.fixture(autouse=True, scope="module")
def single_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def countries():
    return load_graph("countries")


@pytest.mark.parametrize(
    ("fault", "policy", "lockstep", "size"),
    [
        ("fact-cap", "shortest", False, 51),
        ("rest-not-substituted", "shortest", True, 4),
        ("stale-weights", "two_tower", False, 2),
        ("swapped-arguments", "shortest", False, 1),
        ("queries-beyond-slots", "shortest", False, 0),
    ],
)
def test_a_divergence_on_a_graph_shrinks_to_little(countries, fault, policy, lockstep, size):
    verification = verified(countries, fault, policy=policy, lockstep=lockstep)
    make = make_pipeline(EngineSpec(faults=(fault,)))
    found = shrink_divergence(verification, countries, make)
    assert found.removed > 0.8
    assert found.shrunk.problem.size <= size
    assert judge(found.shrunk.problem, make, lockstep=lockstep).signature == found.shrunk.failure.signature
    assert judge(found.shrunk.problem, lockstep=lockstep) is None


def test_a_run_tells_its_graph_and_its_engine(countries):
    report = verified(countries, "last-fact-lost").report
    assert graph_of(report).program.sha256 == countries.program.sha256
    assert engines_of(report) == [EngineSpec(faults=("last-fact-lost",))]


def test_a_divergence_that_the_engine_does_not_show_is_told(countries):
    verification = verified(countries, "last-fact-lost")
    with pytest.raises(UserError, match="no part of the graph was found"):
        shrink_saved(verification, countries, [EngineSpec()])
    with pytest.raises(UserError, match="expected an engine"):
        shrink_saved(verification, countries, [])


@pytest.mark.data
@pytest.mark.skipif("KGVERIFY_DATA" not in os.environ, reason="KGVERIFY_DATA is not set")
@pytest.mark.parametrize(("fault", "size"), [("fact-cap", 51), ("rule-cap", 6), ("captured-variables", 2)])
def test_on_family_the_slice_leaves_out_93_percent_and_100_runs_suffice(fault, size):
    graph = load_graph("family")
    verification = verified(graph, fault, queries=2)
    assert verification.report.divergences
    found = shrink_divergence(verification, graph, make_pipeline(EngineSpec(faults=(fault,))))
    assert found.graph_facts > 19_000
    assert found.removed >= 0.93
    assert found.shrunk.calls <= 100
    assert found.shrunk.is_finished
    assert found.shrunk.problem.size <= size
