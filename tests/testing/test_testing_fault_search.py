"""Faults are found by decoded problems alone, and few of them; a sound evaluator is never accused."""

import statistics

import pytest
from fault_search import ProblemStream, Search

from kgverify import Stage
from kgverify.laws import compiled_maker
from kgverify.prover.faults.plant import FAULTS
from kgverify.testing.checking.check import Checker

QUICK = (
    "fact-cap",
    "query-matched",
    "sequential-substitution",
    "scatter-collision",
    "visited-leak",
    "swapped-arguments",
)


@pytest.fixture(scope="module")
def stream() -> ProblemStream:
    return ProblemStream(seed=0)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", QUICK)
def test_a_fault_is_found_and_confirmed(stream, name):
    found = stream.search_fault(name)
    assert found.is_found
    assert found.failure.index == found.examples - 1
    if found.failure.is_alone:
        assert Checker(compiled_maker(faults=[name])).judge(found.failure.problem).signature == found.failure.signature
    if FAULTS[name].stage is not Stage.RECYCLE:
        assert found.failure.signature.stage == FAULTS[name].stage


@pytest.mark.deep
def test_a_sound_evaluator_is_not_accused():
    assert ProblemStream(seed=1, max_examples=300).search(compiled_maker()) == Search(300, None)


def test_a_search_ends_at_its_limit():
    assert ProblemStream(0, max_examples=3).search_fault("packed-fact-keys") == Search(3, None)


@pytest.mark.exhaustive
def test_every_fault_of_the_catalogue_is_found_half_of_them_within_twenty_problems(stream):
    searches = {name: stream.search_fault(name) for name in FAULTS}
    assert [name for name, each in searches.items() if not each.is_found] == []
    assert statistics.median(each.examples for each in searches.values()) <= 20
