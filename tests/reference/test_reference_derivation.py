"""Derivations from query to outcome."""

import random

import pytest
from reference_programs import goal_of, program_of, random_atom, random_program

from kgreference import Atom, Kind, Limits, Outcome, Shortest, derive, derive_together

ANCESTORS = """
    parent(a, b)
    parent(b, c)
    parent(c, d)
    ancestor(X, Y) <- parent(X, Y)
    ancestor(X, Z) <- parent(X, Y), ancestor(Y, Z)
"""


def derivation_of(text, query, **limits):
    program = program_of(text, queries=query)
    (atom,) = goal_of(program, query)
    return derive(program, Limits(**limits), Shortest(), atom)


def test_a_proof_of_two_rules_is_found():
    derivation = derivation_of(ANCESTORS, "ancestor(b, c)")
    assert derivation.outcome == Outcome.PROVED
    assert len(derivation.steps) == 1
    assert derivation.log_probability == 0.0


def test_each_step_starts_from_the_resolvent_chosen_before():
    derivation = derivation_of(ANCESTORS, "ancestor(a, c)")
    goals = [step.goal for step in derivation.steps]
    assert goals[0] == (derivation.query,)
    assert goals[1:] == [step.chosen.atoms for step in derivation.steps[:-1]]
    assert [step.depth for step in derivation.steps] == list(range(1, len(goals) + 1))
    assert len(set(goals)) == len(goals)
    assert derivation.log_probability == sum(step.log_probability for step in derivation.steps)
    assert derivation.outcome == derivation.steps[-1].outcome


def test_the_query_is_no_fact_of_its_own_derivation():
    assert derivation_of("p(a, b)", "p(a, b)").outcome == Outcome.FAILED
    assert derivation_of("p(a, b)", "p(a, b)", exclude_query=False).outcome == Outcome.PROVED
    loop = "p(a, b)\nq(a, b)\np(X, Y) <- q(X, Y), p(X, Y)"
    assert derivation_of(loop, "p(a, b)").outcome == Outcome.FAILED


def test_a_query_with_variables_starts_canonical_and_excludes_nothing():
    program = program_of("p(a, b)")
    derivation = derive(program, Limits(), Shortest(), Atom(0, 0, -5))
    assert derivation.steps[0].goal == (Atom(0, 0, -1),)
    assert derivation.query == Atom(0, 0, -5)
    assert derivation.outcome == Outcome.PROVED


def test_a_loop_through_two_goals_fails():
    derivation = derivation_of("p(X, Y) <- q(X, Y)\nq(X, Y) <- p(X, Y)\nr(a, b)", "p(a, b)")
    assert derivation.outcome == Outcome.FAILED
    assert len(derivation.steps) == 2


def test_a_growing_goal_ends_at_the_depth_limit():
    derivation = derivation_of(
        "p(X, Y) <- q(X, Z), p(Z, Y)\nq(X, Y) <- r(X, Y)\nr(X, Y) <- p(X, Y)", "p(a, b)", max_depth=3
    )
    assert derivation.outcome == Outcome.DEPTH_LIMIT
    assert len(derivation.steps) == 3
    assert not derivation.is_limited


def test_a_derivation_that_dropped_a_resolvent_is_limited():
    text = "p(X, Y) <- q(X, Z), q(Z, Y)\np(X, Y) <- r(X, Y)\nr(X, Y) <- s(X, Y)\ns(a, b)"
    limited = derivation_of(text, "p(a, b)", max_atoms=1)
    assert limited.is_limited
    assert limited.outcome == Outcome.PROVED
    assert [step.dropped_atoms for step in limited.steps] == [1, 0]
    assert not derivation_of(text, "p(a, b)").is_limited


def test_the_proof_is_the_terminal_goal_true():
    derivation = derivation_of(ANCESTORS, "ancestor(a, b)")
    assert derivation.steps[-1].chosen.kind == Kind.TRUE


@pytest.mark.parametrize("limit", ["max_depth", "max_atoms", "max_resolvents"])
def test_a_limit_below_one_is_refused(limit):
    with pytest.raises(ValueError, match="1 or more"):
        derivation_of("p(a, b)", "p(a, b)", **{limit: 0})


class PreparedShortest(Shortest):
    """The policy `Shortest`, which notes for how many steps it prepares."""

    def __init__(self):
        self.prepared, self.known = [], set()

    def prepare(self, steps):
        self.prepared.append(len(steps))
        self.known |= {goal for goal, _ in steps}

    def scores(self, goal, resolvents):
        assert goal in self.known
        return super().scores(goal, resolvents)


@pytest.mark.parametrize("seed", range(40))
def test_queries_derived_together_are_derived_as_each_alone(seed):
    rng = random.Random(seed)
    program = random_program(rng)
    limits = Limits(
        max_depth=rng.choice((1, 3, 8)), max_atoms=rng.choice((2, 3, 6)), max_resolvents=rng.choice((2, 5, 120))
    )
    terms = [*range(len(program.constants)), -1, -2]
    queries = [random_atom(rng, len(program.predicates), terms) for _ in range(12)]
    policy = PreparedShortest()
    expected = [derive(program, limits, Shortest(), query) for query in queries]
    assert derive_together(program, limits, policy, queries) == expected
    assert policy.prepared[0] == 12
    assert sum(policy.prepared) == sum(len(each.steps) for each in expected)


def test_no_queries_have_no_derivations():
    assert derive_together(program_of(ANCESTORS), Limits(), PreparedShortest(), []) == []
