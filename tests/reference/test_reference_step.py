"""Each stage of a step, and derivations from query to outcome, on examples worked by hand."""

import math
import random

import pytest
from reference_programs import goal_of, program_of, random_atom, random_program, text_of

from kgreference import (
    FALSE,
    OURS,
    Kind,
    Limits,
    OriginKind,
    Outcome,
    Resolvent,
    Shortest,
    Situation,
    Stages,
    derive,
    derive_together,
    find_excluded,
    take_step,
)
from kgreference.step import log_softmax

STAGES = Stages()


def situation_of(program, goal, query=(0, -1, -2), visited=(), depth=0, policy=None, **limits):
    excluded = find_excluded(OURS, Limits(**limits), query, is_positive=True)
    return Situation(OURS, program, Limits(**limits), policy or Shortest(), excluded, goal, depth, set(visited))


def step_of(program, goal, query="p(X, Y)", visited=(), depth=0, **limits):
    """One step. The query has variables unless one is given, and so excludes nothing."""
    (query_atom,) = goal_of(program, query)
    seen = {goal_of(program, other) for other in visited}
    return take_step(situation_of(program, goal_of(program, goal), query_atom, seen, depth, **limits))


def resolvent_of(program, text, origin=0):
    return Resolvent(Kind.GOAL, goal_of(program, text), OriginKind.RULE, origin)


STEPS = """
# The leftmost atom is selected, and every fact that unifies is matched in order.
p(a, b); q(b, a) | q(X, a), p(a, X) | | matched_facts | 1
q(a, b); q(b, c); p(b, a); p(c, b); p(a, b); p(a, a) | p(a, b) | | matched_facts | 3
q(a, b); q(b, c); p(b, a); p(c, b); p(a, b); p(a, a) | p(a, X) | | matched_facts | 2 3
q(a, b); q(b, c); p(b, a); p(c, b); p(a, b); p(a, a) | p(X, b) | | matched_facts | 3 5
q(a, b); q(b, c); p(b, a); p(c, b); p(a, b); p(a, a) | p(X, Y) | | matched_facts | 2 3 4 5
q(a, b); q(b, c); p(b, a); p(c, b); p(a, b); p(a, a) | p(X, X) | | matched_facts | 2
q(a, b); q(b, c); p(b, a); p(c, b); p(a, b); p(a, a) | p(b, b) | | matched_facts |
# The excluded atom is neither matched nor pruned; a query with variables excludes nothing.
p(a, b); p(a, c) | p(a, X) | query=p(a, b) | matched_facts | 1
p(a, b); p(a, c) | p(a, X) | query=p(a, b); exclude_query=0 | matched_facts | 0 1
p(a, b); p(a, c) | p(a, X) | query=p(a, X) | matched_facts | 0 1
p(a, b); q(a, b); p(X, Y) <- q(X, Y), p(X, Y) | p(a, b) | query=p(a, b) | after_prune | p(a, b)
# Heads with constants and repeated variables match what they unify with.
p(a, X) <- q(X, X); p(b, X) <- q(X, X); p(X, X) <- q(X, X); p(X, Y) <- q(X, Y) | p(a, b) | | matched_rules | 0 3
p(a, X) <- q(X, X); p(b, X) <- q(X, X); p(X, X) <- q(X, X); p(X, Y) <- q(X, Y) | p(a, a) | | matched_rules | 0 2 3
p(a, X) <- q(X, X); p(X, X) <- q(X, X); p(X, Y) <- q(X, Y) | p(X, X) | | after_rename | q(a, a); q(X0, X0); q(X0, X0)
p(a, X) <- q(X, X); p(X, X) <- q(X, X) | p(X, b), q(X, Y) | | after_rename | q(b, b), q(a, X0); q(b, b), q(b, X0)
# A rule captures no variable of the goal, and the unifier reaches the rest of the goal at once.
p(X, Y) <- q(X, Z), q(Z, Y) | p(X, Y), q(Z, X), q(Y, W) | | after_rename | q(X0, X1), q(X1, X2), q(X3, X0), q(X2, X4)
p(Y, X) <- q(X, Y) | p(X, Y), q(X, Y) | | after_rename | q(X0, X1), q(X1, X0)
# Rules come before facts.
p(a, b); p(a, c); q(b, b); p(X, Y) <- s(Y, X) | p(a, X), q(X, X) | | after_rename | s(X0, a), q(X0, X0); ; q(c, c)
# Pruning closes the gap and keeps the order; only facts are pruned, the first atom too.
q(a, b); p(X, Y) <- r(X, Y), q(a, b), s(X, Y), q(a, b), t(Y, X) | p(a, b) | | after_prune | r(a, b), s(a, b), t(b, a)
q(a, b); p(X, Y) <- q(X, Y), q(Y, Z), q(Y, X) | p(a, b) | | after_rename | q(b, X0), q(b, a)
# Each resolvent is numbered from zero.
p(X, Y) <- q(Z, Y), q(X, W); p(X, Y) <- q(Z, Z) | p(a, X) | | after_rename | q(X0, X1), q(a, X2); q(X0, X0)
# Goals visited before and the current one are dropped, in the same order of atoms only.
p(X, Y) <- p(X, Y); p(X, Y) <- q(Y, X); p(X, Y) <- r(X, Y) | p(a, X) | visited=q(X, a) | after_revisit | r(a, X0)
p(X, Y) <- q(X, Y), r(X, Y) | p(X, Y) | visited=r(X, Y), q(X, Y) | after_revisit | q(X0, X1), r(X0, X1)
# Atoms are counted after pruning, and no limit hides a proof.
q(a, b); q(b, a); p(X, Y) <- q(X, Y), q(Y, X), r(X, Y) | p(a, b) | max_atoms=1 | dropped_atoms | 0
p(a, b); p(X, Y) <- q(X, Y); p(X, Y) <- r(X, Y) | p(a, b) | max_resolvents=1 | outcome | PROVED
# The depth limit is reached only by an unfinished goal.
p(X, Y) <- r(X, Y); q(a, b) | p(b, a) | depth=3; max_depth=5 | outcome | OPEN
p(X, Y) <- r(X, Y); q(a, b) | p(b, a) | depth=4; max_depth=5 | outcome | DEPTH_LIMIT
p(X, Y) <- q(X, Y); q(a, b) | p(a, b) | depth=4; max_depth=5 | outcome | PROVED
p(X, Y) <- q(X, Y); q(a, b) | q(b, a) | depth=4; max_depth=5 | outcome | FAILED
"""
"""A program, a goal, options, and a field of the step from the goal with its value."""


def read_options(text):
    """Read `query=p(a, b); depth=3`."""
    options = dict(each.strip().split("=") for each in text.split(";") if each.strip())
    return {
        name: value if name == "query" else [value] if name == "visited" else int(value)
        for name, value in options.items()
    }


@pytest.mark.parametrize("row", [row for row in STEPS.strip().splitlines() if row[0] != "#"])
def test_a_stage_gives_what_the_semantics_say(row):
    text, goal, options, field, expected = map(str.strip, row.split("|"))
    program = program_of(text.replace(";", "\n"), queries=f"{goal} z(a, b)")
    value = getattr(step_of(program, goal, **read_options(options)), field)
    if field.startswith("after_"):
        value = "; ".join(text_of(program, each.atoms) for each in value)
    elif field.startswith("matched_"):
        value = " ".join(map(str, value))
    assert getattr(value, "name", str(value)) == expected


def test_there_is_no_cap_on_matched_facts():
    program = program_of("\n".join(f"p(a, b{number})" for number in range(500)))
    assert step_of(program, "p(a, X)").matched_facts == list(range(500))


def test_every_resolvent_names_its_clause():
    step = step_of(program_of("p(a, b)\np(a, c)\np(X, Y) <- q(X, Y)\np(X, Y) <- r(Y, X)"), "p(a, X)")
    origins = [(each.origin_kind, each.origin) for each in step.after_resolve]
    assert origins == [(OriginKind.RULE, 0), (OriginKind.RULE, 1), (OriginKind.FACT, 0), (OriginKind.FACT, 1)]


def test_the_first_true_closes_the_step_alone():
    program = program_of("p(X, Y) <- r(X, Y)\np(X, Y) <- q(X, Y)\np(X, Y) <- q(Y, X)\nq(a, b)\nq(b, a)\np(a, b)")
    step = step_of(program, "p(a, b)")
    assert [r.kind for r in step.after_revisit] == [Kind.GOAL, Kind.TRUE, Kind.TRUE, Kind.TRUE]
    assert step.after_close == [Resolvent(Kind.TRUE, (), OriginKind.RULE, 1)]
    assert (step.scores, step.choice, step.log_probability) == ([0.0], 0, 0.0)


def test_a_step_without_resolvents_or_whose_limit_drops_everything_is_false():
    program = program_of("p(a, b)")
    step = step_of(program, "p(b, X)")
    assert step.after_close == step.after_limit == [step.chosen] == [FALSE]
    assert (step.scores, step.log_probability, step.outcome) == ([0.0], 0.0, Outcome.FAILED)
    step = step_of(program_of("p(X, Y) <- q(X, Z), q(Z, Y)\nq(a, b)"), "p(X, b)", max_atoms=1)
    assert step.after_limit == [FALSE]
    assert (step.dropped_atoms, step.dropped_resolvents, step.outcome) == (1, 0, Outcome.FAILED)


def test_the_limit_counts_long_resolvents_first_and_then_those_beyond_the_number():
    program = program_of("p(a, b)\nq(a, a)")
    texts = ["q(X, X), q(X, X), p(X, X)", "p(X, Y)", "p(X, X)", "q(X, X), p(X, Y)"]
    stages = Stages(close=lambda situation, _: [resolvent_of(program, text, i) for i, text in enumerate(texts)])
    step = take_step(situation_of(program, goal_of(program, "p(b, X)"), max_atoms=2, max_resolvents=2), stages)
    assert [resolvent.origin for resolvent in step.after_limit] == [1, 2]
    assert (step.dropped_atoms, step.dropped_resolvents) == (1, 1)


def test_shortest_prefers_fewer_atoms_then_fewer_variables_then_the_lowest_index():
    program = program_of(
        "p(X, Y) <- q(X, Y), r(X, Y)\np(X, Y) <- q(X, Z)\np(X, Y) <- q(X, Y)\np(X, Y) <- r(X, Y)\ns(a, b)"
    )
    step = step_of(program, "p(a, b)")
    assert (step.scores, step.choice) == ([-2.0, -1.015625, -1.0, -1.0], 2)
    assert step.log_probability == pytest.approx(-math.log(2 + math.exp(-1) + math.exp(-1 / 64)))


def test_the_log_softmax_is_that_of_the_definition_in_any_order():
    assert log_softmax([2.0, 2.0], 1) == pytest.approx(-math.log(2))
    assert log_softmax([5.0], 0) == log_softmax([-1e4, 0.0], 1) == 0.0
    scores = [0.1, -3.7, 2.9, 2.8999999, -0.3, 1e-9]
    assert len({log_softmax(scores[n:] + scores[:n], (2 - n) % 6) for n in range(6)}) == 1


def test_a_step_starts_from_an_open_goal_above_the_depth_limit():
    program = program_of("p(a, b)")
    with pytest.raises(ValueError, match=r"must start.*found none"):
        take_step(situation_of(program, ()))
    with pytest.raises(ValueError, match=r"must start.*found 20"):
        step_of(program, "p(a, b)", depth=20)


def test_what_stands_alone_gets_no_score_of_the_policy():
    class Loud:
        def scores(self, goal, resolvents):
            return [float(len(goal)) for _ in resolvents]

    goal = goal_of(program := program_of("p(a, b)"), "p(a, X)")
    situation = situation_of(program, goal, policy=Loud())
    assert STAGES.score(situation, [FALSE]) == STAGES.score(situation, [FALSE._replace(kind=Kind.TRUE)]) == [0.0]
    assert STAGES.score(situation, [resolvent_of(program, "p(a, b)")] * 2) == [1.0, 1.0]


ANCESTORS = """
    parent(a, b)
    parent(b, c)
    parent(c, d)
    ancestor(X, Y) <- parent(X, Y)
    ancestor(X, Z) <- parent(X, Y), ancestor(Y, Z)
"""
LIMITED = "p(X, Y) <- q(X, Z), q(Z, Y)\np(X, Y) <- r(X, Y)\nr(X, Y) <- s(X, Y)\ns(a, b)"
GROWS = "p(X, Y) <- q(X, Z), p(Z, Y)\nq(X, Y) <- r(X, Y)\nr(X, Y) <- p(X, Y)"


def derivation_of(text, query, **limits):
    program = program_of(text, queries=query)
    return derive(program, Limits(**limits), Shortest(), goal_of(program, query)[0])


@pytest.mark.parametrize(
    ("text", "query", "limits", "outcome", "num_steps", "is_limited"),
    [
        (ANCESTORS, "ancestor(b, c)", {}, "PROVED", 1, False),
        ("p(a, b)", "p(a, b)", {}, "FAILED", 1, False),
        ("p(a, b)", "p(a, b)", {"exclude_query": False}, "PROVED", 1, False),
        ("p(a, b)\nq(a, b)\np(X, Y) <- q(X, Y), p(X, Y)", "p(a, b)", {}, "FAILED", 1, False),
        ("p(a, b)", "p(X, b)", {}, "PROVED", 1, False),
        ("p(X, Y) <- q(X, Y)\nq(X, Y) <- p(X, Y)\nr(a, b)", "p(a, b)", {}, "FAILED", 2, False),
        (GROWS, "p(a, b)", {"max_depth": 3}, "DEPTH_LIMIT", 3, False),
        (LIMITED, "p(a, b)", {"max_atoms": 1}, "PROVED", 2, True),
        (LIMITED, "p(a, b)", {}, "PROVED", 2, False),
    ],
)
def test_a_derivation_ends_with_its_outcome(text, query, limits, outcome, num_steps, is_limited):
    found = derivation_of(text, query, **limits)
    assert (found.outcome.name, len(found.steps), found.is_limited) == (outcome, num_steps, is_limited)


def test_each_step_starts_from_the_resolvent_chosen_before():
    derivation = derivation_of(ANCESTORS, "ancestor(a, c)")
    goals = [step.goal for step in derivation.steps]
    assert goals == [(derivation.query,), *(step.chosen.atoms for step in derivation.steps[:-1])]
    assert [step.depth for step in derivation.steps] == list(range(1, len(goals) + 1))
    assert len(set(goals)) == len(goals) > 1
    assert derivation.log_probability == sum(step.log_probability for step in derivation.steps)
    assert derivation.outcome == derivation.steps[-1].outcome


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


def test_queries_derived_together_are_derived_as_each_alone():
    for seed in range(30):
        rng = random.Random(seed)
        program = random_program(rng)
        limits = Limits(rng.choice((1, 3, 8)), rng.choice((2, 3, 6)), rng.choice((2, 5, 120)))
        terms = [*range(len(program.constants)), -1, -2]
        queries = [random_atom(rng, len(program.predicates), terms) for _ in range(12)]
        policy = PreparedShortest()
        expected = [derive(program, limits, Shortest(), query) for query in queries]
        assert derive_together(program, limits, policy, queries) == expected
        assert policy.prepared[0] == 12
        assert sum(policy.prepared) == sum(len(each.steps) for each in expected)
    assert derive_together(program, limits, policy, []) == []
