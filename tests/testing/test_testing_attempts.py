"""Attempts of the shrinker: the neighbours of a problem after one change, and the attempts of single passes."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from known_shrinks import IN_STEP, RuledOracle

from kgverify import Limits, Problem
from kgverify.engines.protocol import Sizes
from kgverify.program.atoms import NamedAtom, Variable
from kgverify.program.program import NamedRule
from kgverify.testing.problems.problem import PolicySpec, Spread
from kgverify.testing.shrinking.shrink import ask_fact, drop_queries, find_neighbour, lower_limits

X, Y = Variable("X"), Variable("Y")
QUERY, OTHER = NamedAtom("p", "a", "b"), NamedAtom("q", "b", "a")
FACTS = tuple(NamedAtom("p", f"c{i}", f"c{i + 1}") for i in range(20))
RULE = NamedRule(NamedAtom("p", X, Y), (NamedAtom("q", X, Y), NamedAtom("r", Y, Y)))
ONE = Problem(unranked=(QUERY,))


def neighbour_of(problem: Problem, fails: Callable[[Problem], bool]) -> str | None:
    """Return the change after which a problem does not fail by the rule."""
    assert fails(problem)
    found = find_neighbour(problem, RuledOracle(IN_STEP, fails))
    if found is None:
        return None
    assert not fails(found.problem)
    return found.change


def limited(**limits: int | bool) -> Problem:
    return replace(ONE, limits=Limits(**limits))


@pytest.mark.parametrize(
    ("problem", "fails", "change"),
    [
        (limited(max_depth=3), lambda each: each.limits.max_depth <= 3, "max_depth is 4 instead of 3"),
        (limited(max_depth=3), lambda each: each.limits.max_depth >= 3, "max_depth is 2 instead of 3"),
        (limited(max_atoms=1), lambda each: each.limits.max_atoms == 1, "max_atoms is 2 instead of 1"),
        (limited(max_resolvents=2), lambda each: each.limits.max_resolvents > 1, "max_resolvents is 1 instead of 2"),
        (
            limited(exclude_query=False),
            lambda each: not each.limits.exclude_query,
            "the query may not serve as a fact in its own derivation",
        ),
        (
            replace(ONE, spread=Spread(7, 0, 2)),
            lambda each: each.spread.after == 2,
            "unused symbols come after 1 instead of 2",
        ),
        (
            replace(ONE, spread=Spread(7, 0, 2)),
            lambda each: each.spread.constants <= 7,
            "unused constants: 8 instead of 7",
        ),
        (
            replace(ONE, sizes=Sizes(match_window=3)),
            lambda each: each.sizes.match_window <= 3,
            "match window: 4 instead of 3",
        ),
        (
            replace(ONE, sizes=Sizes(match_window=3)),
            lambda each: each.sizes.match_window in (3, 4),
            "match window: 2 instead of 3",
        ),
        (
            replace(ONE, sizes=Sizes(pool=9)),
            lambda each: 8 <= each.sizes.pool <= 10,
            "pool: 32 instead of 9",
        ),
        (
            replace(ONE, policy=PolicySpec("two_tower")),
            lambda each: each.policy.name == "two_tower",
            "the policy is shortest",
        ),
    ],
)
def test_a_number_that_matters_is_the_difference(problem: Problem, fails: Callable[[Problem], bool], change: str):
    assert neighbour_of(problem, fails) == change


def test_default_numbers_are_not_changed():
    default = (ONE.limits, ONE.sizes, ONE.spread, ONE.policy)
    assert neighbour_of(ONE, lambda each: (each.limits, each.sizes, each.spread, each.policy) == default) is None


@pytest.mark.parametrize(
    ("problem", "fails", "change"),
    [
        # A query of two, whether the other one is ranked or not.
        (replace(ONE, unranked=(QUERY, OTHER)), lambda p: len(p.unranked) == 2, "without the query p(a, b)"),
        (replace(ONE, queries=(OTHER,)), lambda p: len(p.unranked) == 1, "without the query p(a, b)"),
        # The only query is replaced, first by another constant.
        (replace(ONE, facts=(OTHER,)), lambda p: QUERY in p.unranked, "the query p(b, b) instead of p(a, b)"),
        # Of many facts, the last one that matters is left out before a query is replaced.
        (
            replace(ONE, facts=FACTS[:9]),
            lambda p: FACTS[3] in p.facts and QUERY in p.unranked,
            "without the fact p(c3, c4)",
        ),
        (
            replace(ONE, facts=FACTS[:8]),
            lambda p: FACTS[3] in p.facts and QUERY in p.unranked,
            "the query p(c0, b) instead of p(a, b)",
        ),
        (
            replace(ONE, rules=(RULE,)),
            lambda p: not p.rules or len(p.rules[0].body) > 1,
            "without q(X, Y) in the rule {rule}",
        ),
        (
            replace(ONE, rules=(RULE,)),
            lambda p: not p.rules or p.rules[0].body != RULE.body[:1],
            "without r(Y, Y) in the rule {rule}",
        ),
        (
            replace(ONE, rules=(RULE,)),
            lambda p: not p.rules or p.rules[0].clause_head == RULE.clause_head or len(p.rules[0].body) < 2,
            "the head p(Y, Y) instead of p(X, Y) of the rule {rule}",
        ),
        (
            replace(ONE, rules=(RULE,)),
            lambda p: not p.rules or p.rules[0].body[-1] == RULE.body[-1] or len(p.rules[0].body) < 2,
            "the body atom r(X, Y) instead of r(Y, Y) of the rule {rule}",
        ),
        (ONE, lambda p: not p.facts, "with the fact p(a, a) as well"),
        (replace(ONE, rules=(RULE, RULE)), lambda p: len(p.rules) == 2, "without the rule {rule}"),
        (
            ONE,
            lambda p: not (p.facts and isinstance(p.unranked[0].second, Variable)),
            "with the fact p(a, d), and the query p(a, X) instead of p(a, b)",
        ),
    ],
)
def test_an_element_that_matters_is_the_difference(problem: Problem, fails: Callable[[Problem], bool], change: str):
    assert neighbour_of(problem, fails) == change.format(rule=RULE)


@pytest.mark.parametrize(("number", "is_tried"), [(0, True), (15, True), (16, False)])
def test_the_first_sixteen_facts_get_other_terms(number: int, is_tried: bool):
    problem = replace(ONE, facts=FACTS)
    found = neighbour_of(problem, lambda each: len(each.facts) != len(FACTS) or FACTS[number] in each.facts)
    assert (found is not None) == is_tried


@pytest.mark.parametrize(("num_queries", "num_attempts"), [(1, 2), (2, 2 + 4), (4, 2 + 8), (5, 2)])
def test_a_query_for_a_fact_is_alone_or_replaces_one_of_up_to_four(num_queries: int, num_attempts: int):
    problem = replace(ONE, facts=(OTHER,), rules=(RULE,), unranked=(QUERY,) * num_queries)
    attempts = list(ask_fact(problem))
    assert len(attempts) == num_attempts
    assert not any(each.rules for each in attempts)
    asked = {NamedAtom("q", X, "a"), NamedAtom("q", "b", X)}
    assert all(len(asked & set(each.unranked)) == 1 for each in attempts)
    assert {len(each.unranked) for each in attempts} == ({1, num_queries} if num_queries <= 4 else {1})


def test_of_problems_of_one_size_the_smallest_has_the_fewest_queries():
    oracle = RuledOracle(IN_STEP, lambda problem: problem.seed == 0)
    many, few = Problem(queries=(QUERY,), unranked=(QUERY, OTHER)), ONE
    assert not oracle.holds(replace(few, seed=1))
    assert oracle.smallest is None
    assert oracle.holds(many)
    assert oracle.smallest == many
    assert oracle.holds(few)
    assert oracle.smallest == few
    assert oracle.holds(replace(few, facts=FACTS))
    assert not oracle.holds(Problem(queries=(QUERY,), seed=1))
    assert oracle.smallest == few


def test_a_limit_is_lowered_by_one_and_then_to_a_quarter():
    lowered = lower_limits(limited(max_depth=17), RuledOracle(IN_STEP, lambda each: each.limits.max_depth >= 4))
    assert lowered.limits.max_depth == 4


def test_the_seed_of_a_draw_is_lowered_where_nothing_is_drawn():
    def drop(problem: Problem) -> Problem:
        return drop_queries(problem, RuledOracle(IN_STEP, lambda each: bool(each.queries) == bool(problem.queries)))

    unranked, ranked = replace(ONE, num_corruptions=3, seed=5), Problem(queries=(QUERY,), num_corruptions=3, seed=5)
    assert drop(unranked) == replace(unranked, num_corruptions=0, seed=0)
    assert drop(ranked) == replace(ranked, num_corruptions=0)
    # A ranking that needs its corruptions keeps their seed.
    oracle = RuledOracle(IN_STEP, lambda each: bool(each.queries) and (each.num_corruptions == 3 or each.seed == 0))
    assert drop_queries(ranked, oracle) == ranked
