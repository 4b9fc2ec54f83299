"""SWI-Prolog takes the steps of the reference in its dialect, clingo finds its least models, and a lost clause is noticed."""

import importlib
import shutil
from importlib.util import find_spec

import pytest
from third_party_steps import judge

INSTALLED = {"swipl": shutil.which("swipl"), "clingo": find_spec("clingo")}


@pytest.fixture(params=INSTALLED)
def package(request):
    if INSTALLED[request.param] is None:
        pytest.skip(f"{request.param} is not installed")
    return request.param


def test_steps_and_models_are_those_of_the_reference(package):
    counts, wrong = judge(package, seed=5, num_programs=150)
    assert not wrong, wrong[0]
    rare = ("PROVED", "FAILED", "DEPTH_LIMIT") if package == "swipl" else ("derived",)
    assert all(counts[name] > 20 for name in rare), counts


def test_a_lost_clause_is_noticed(package, monkeypatch):
    judge(package, seed=5, num_programs=0)
    adapter = importlib.import_module(f"{package}_adapter")
    if package == "swipl":
        find_steps = adapter.find_steps
        monkeypatch.setattr(
            adapter, "find_steps", lambda problems: find_steps([(each[0][1:], *each[1:]) for each in problems])
        )
    else:
        find_models = adapter.find_models
        monkeypatch.setattr(adapter, "find_models", lambda programs: find_models([clauses[1:] for clauses in programs]))
    counts, _ = judge(package, seed=5, num_programs=50)
    assert counts["differs"] > 5
