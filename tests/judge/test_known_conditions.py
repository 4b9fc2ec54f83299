"""Engines that are wrong under a known condition: reports state it, and experiments confirm it.

The planted faults of the evaluator, with conditions of their own, are in `tests/conditions`.
"""

from functools import partial

import pytest
from problem_text import graph_of

import kgverify as kv
from kgreference import Stages
from kgreference.resolvent import Matches
from kgreference.step import limit_atoms, limit_resolvents, match_facts, score
from kgverify.dialects import ReferenceEngine

pytestmark = pytest.mark.usefixtures("experiments")

SIZE = 13
NUM_FACTS = 2 * SIZE - 1
"""The facts of each predicate: two formulas give one of them."""

FACTS = [
    f"{name}(c{i:02}, c{(factor * i + 1) % SIZE:02})"
    for name in ("near", "far")
    for factor in (3, 5)
    for i in range(SIZE)
]
RULES = """
way(X, Y) <- way(X, Y);
way(X, Y) <- far(X, Z), far(Z, Y), far(Y, Z), far(Z, X);
way(X, Z) <- near(X, Y), near(Y, Z);
way(X, Z) <- far(X, Y), way(Y, Z);
way(X, Z) <- near(Y, Z), far(X, Y), near(Z, Z);
near(X, Y) <- far(Y, X), far(X, Z);
way(X, Z) <- far(X, Y), near(Y, Y)
"""
"""The second body is always too long, and the last argument of the last head may be anything."""
QUERIES = [f"! way(c{i:02}, c{7 * i % SIZE:02})" for i in range(5)]
GRAPH = graph_of("; ".join([*FACTS, RULES, *QUERIES]))


def pick(found, is_used):
    rows = [row for row in zip(*found, strict=True) if is_used(row[0])]
    return Matches(*zip(*rows, strict=True)) if rows else Matches((), (), (), (), ())


def lack_the_last_facts(situation, selected):
    return pick(match_facts(situation, selected), lambda index: index % NUM_FACTS < 16)


def use_odd_facts_for_other_arguments(situation, selected):
    found = match_facts(situation, selected)
    if selected[2] < 0:
        return found
    near = situation.program.facts_matching((*selected[:2], -99))
    others = pick(near, lambda index: index % 2 and situation.program.facts[index][2] != selected[2])
    return Matches(*(own + other for own, other in zip(found, others, strict=True)))


def keep_a_resolvent_less(situation, resolvents):
    kept = limit_resolvents(situation, resolvents)
    return kept[:-1] if len(kept) == situation.limits.max_resolvents else kept


def allow_an_atom_less(situation, resolvents):
    return [each for each in limit_atoms(situation, resolvents) if len(each.atoms) < situation.limits.max_atoms]


def score_long_resolvents_lower(situation, resolvents):
    return [
        value - 0.125 * (len(each.atoms) > 2)
        for value, each in zip(score(situation, resolvents), resolvents, strict=True)
    ]


STATED = {
    "match_facts missing: the facts left over after full blocks of 16 of their predicate's segment are missing": {
        "match_facts": lack_the_last_facts
    },
    "match_facts extra: the facts of the selected predicate that match the selected atom but for the second argument"
    " and whose index is odd and where the selected atom's second argument is a constant are extra": {
        "match_facts": use_odd_facts_for_other_arguments
    },
    "limit limit: the resolvents on the last place below max_resolvents and of max_atoms atoms or fewer"
    " and that equal no goal visited before are dropped wrongly": ({"limit_resolvents": keep_a_resolvent_less}),
    "limit limit: the resolvents of max_atoms atoms and that equal no goal visited before are dropped wrongly": (
        {"limit_atoms": allow_an_atom_less}
    ),
    "score number: the resolvents of max_atoms atoms are scored wrongly": {"score": score_long_resolvents_lower},
}


@pytest.mark.parametrize("said", STATED)
def test_the_condition_under_which_an_engine_is_wrong_is_stated_and_confirmed(said: str):
    report = kv.verify(
        GRAPH,
        partial(ReferenceEngine, stages=Stages(**STATED[said])),
        queries=5,
        corruptions=3,
        limits=kv.Limits(max_depth=4, max_atoms=3, max_resolvents=4),
        equality=kv.Equality(determinism=False, minimum={}),
    )
    cause = report.causes[0]
    condition = cause.condition.partition(": ")[0].replace("a sample of ", "").removeprefix("in this run, ")
    assert f"{cause.stage} {cause.kind}: {condition}" == said
    assert (cause.when.wrong_inside, cause.when.right_inside) == (cause.when.num_wrong, 0)
    assert cause.when.num_wrong > 10
    assert cause.when.experiment.verdict == "confirmed"
