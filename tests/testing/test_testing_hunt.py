"""Faults are found by decoded problems alone, and few of them; a sound evaluator is never accused."""

import statistics

import pytest

from kgverify.faults.catalogue import FAULTS
from kgverify.program.stages import Stage
from kgverify.testing.campaigns.hunt import Ground, Hunt, hunt
from kgverify.testing.checking.check import judge
from kgverify.testing.checking.pipelines import compiled_maker

QUICK = (
    "fact-cap",
    "query-matched",
    "sequential-substitution",
    "scatter-collision",
    "visited-leak",
    "swapped-arguments",
)


@pytest.fixture(scope="module")
def ground() -> Ground:
    return Ground(seed=0)


@pytest.mark.parametrize("name", QUICK)
def test_a_fault_is_found_and_confirmed(ground, name):
    found = ground.hunt(name)
    assert found.is_found
    assert found.failure.index == found.examples - 1
    if found.failure.is_alone:
        assert judge(found.failure.problem, compiled_maker(faults=[name])).signature == found.failure.signature
    if FAULTS[name].stage is not Stage.RECYCLE:
        assert found.failure.signature.stage == FAULTS[name].stage


def test_a_sound_evaluator_is_not_accused():
    assert Ground(seed=1, max_examples=300).hunt_pipeline(compiled_maker()) == Hunt(300, None)


def test_a_hunt_ends_where_it_was_told_to():
    assert hunt("packed-fact-keys", max_examples=3) == Hunt(3, None)


@pytest.mark.deep
def test_every_fault_of_the_catalogue_is_found_half_of_them_within_twenty_problems(ground):
    hunts = {name: ground.hunt(name) for name in FAULTS}
    assert [name for name, each in hunts.items() if not each.is_found] == []
    assert statistics.median(each.examples for each in hunts.values()) <= 20
