"""The reference's derivations, stage by stage, against SWI-Prolog, on generated programs of two kinds."""

import os
from collections import Counter
from functools import partial
from itertools import islice

import pytest
from judges.cases import draw_cases
from judges.derivations import has_prolog, judge_choices, judge_derivations
from reference_programs import draw_fuzz_cases

import kgreference
from kgreference import Outcome, Stages

RARE = (
    "a tie",
    "a variable twice",
    "all dropped",
    "all visited",
    "as many resolvents as allowed",
    "DEPTH_LIMIT",
    "dropped by both limits",
    "max_atoms + 1 atoms",
    "max_atoms atoms",
    "more than 120 resolvents",
    "one resolvent too many",
    "PROVED by the last step",
    "the query again",
    "TRUE behind a goal",
    "TRUE beyond the limit",
    "twenty steps",
    "two TRUE",
    "visited",
)
"""Conditions that must occur, as Prolog counts them."""
TIERS = (80, pytest.param(800, marks=pytest.mark.deep))
"""Programs of each tier."""


@pytest.fixture(autouse=True, scope="module")
def prolog() -> None:
    if not has_prolog():
        if os.environ.get("CI"):
            pytest.fail("swipl is not installed")
        pytest.skip("swipl is not installed")


@pytest.mark.parametrize("num", TIERS)
def test_prolog_takes_every_step_of_every_derivation_alike(num: int) -> None:
    seen: Counter[str] = Counter()
    assert judge_derivations(list(islice(draw_cases(1), num)), seen) == []
    assert seen["steps"] > 4 * num
    missing = [name for name in RARE if seen[name] < num // 500]
    assert not missing, seen


@pytest.mark.parametrize("num", TIERS)
def test_prolog_takes_every_step_of_the_problems_that_fuzzing_generates(num: int) -> None:
    seen: Counter[str] = Counter()
    assert judge_derivations(list(islice(draw_fuzz_cases(1), num)), seen) == []
    assert seen["steps"] > 3 * num


@pytest.mark.parametrize("num", TIERS)
def test_prolog_takes_every_step_that_a_network_chooses_and_numpy_finds_its_scores(num: int) -> None:
    seen: Counter[str] = Counter()
    assert judge_choices(list(islice(draw_cases(2), num // 2)), seen) == []
    assert seen["a choice by the network"] > num // 4


SOUND = Stages()


def prune_the_excluded_atom(situation, resolvents):
    return SOUND.prune(situation._replace(excluded=None), resolvents)


def prove_at_the_depth_limit(situation, chosen, depth):
    outcome = SOUND.finish(situation, chosen, depth)
    return Outcome.PROVED if outcome is Outcome.DEPTH_LIMIT else outcome


@pytest.mark.parametrize("stages", [{"prune": prune_the_excluded_atom}, {"finish": prove_at_the_depth_limit}])
def test_prolog_notices_a_wrong_stage(stages, monkeypatch):
    monkeypatch.setattr(kgreference, "derive", partial(kgreference.derive, stages=Stages(**stages)))
    assert judge_derivations(list(islice(draw_cases(8), 60)), Counter()) != []
