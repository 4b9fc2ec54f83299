"""The reference's derivations, stage by stage, against SWI-Prolog; scores and choices of a network against numpy as well."""

import os
import random
from collections import Counter
from itertools import islice

import pytest
from judges.cases import Case, NamedAtom, draw_cases
from judges.derivations import has_prolog, judge_choices, judge_derivations
from reference_programs import Dataset, read_dataset

from kgreference import Atom

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
TIERS = (80, pytest.param(1500, marks=pytest.mark.deep), pytest.param(40_000, marks=pytest.mark.exhaustive))
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
def test_prolog_takes_every_step_that_a_network_chooses_and_numpy_finds_its_scores(num: int) -> None:
    seen: Counter[str] = Counter()
    assert judge_choices(list(islice(draw_cases(2), num // 2)), seen) == []
    assert seen["a choice by the network"] > num // 4


def named(dataset: Dataset, atom: Atom) -> NamedAtom:
    """An atom with labels: symbols are their own ids, and variables have names."""
    first, second = (term if term >= 0 else f"x{-1 - term}" for term in atom[1:])
    return atom[0], first, second


@pytest.mark.exhaustive
@pytest.mark.data
def test_prolog_takes_every_step_on_family() -> None:
    dataset = read_dataset("family")
    program, test, corrupter = dataset
    rng = random.Random(7)
    queries = [
        named(dataset, query)
        for index in rng.sample(range(len(test)), 6)
        for side in (0, 1)
        for query in corrupter.candidates(test[index], index, side, 2, 0)
    ]
    facts = [named(dataset, fact) for fact in program.facts]
    rules = [(named(dataset, rule.head), [named(dataset, atom) for atom in rule.body]) for rule in program.rules]
    seen: Counter[str] = Counter()
    assert judge_derivations([Case(facts, rules, queries, [], None, [])], seen) == []
    assert seen["steps"] >= 36
