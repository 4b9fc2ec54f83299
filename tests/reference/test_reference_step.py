"""Each stage of a step, on examples worked by hand."""

import math

import pytest
from reference_programs import goal_of, program_of, text_of

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


def texts(program, resolvents):
    return [text_of(program, resolvent.atoms) for resolvent in resolvents]


def resolvent_of(program, text, origin=0):
    return Resolvent(Kind.GOAL, goal_of(program, text), OriginKind.RULE, origin)


def test_the_leftmost_atom_is_selected():
    program = program_of("p(a, b)\nq(b, a)")
    step = step_of(program, "q(X, a), p(a, X)")
    assert text_of(program, (step.selected,)) == "q(X0, a)"
    assert step.matched_facts == [1]


@pytest.mark.parametrize(
    ("goal", "expected"),
    [
        ("p(a, b)", ["p(a, b)"]),
        ("p(a, X)", ["p(a, a)", "p(a, b)"]),
        ("p(X, b)", ["p(a, b)", "p(c, b)"]),
        ("p(X, Y)", ["p(a, a)", "p(a, b)", "p(b, a)", "p(c, b)"]),
        ("p(X, X)", ["p(a, a)"]),
        ("p(b, b)", []),
    ],
)
def test_every_fact_that_unifies_is_matched_in_order(goal, expected):
    program = program_of("q(a, b)\nq(b, c)\np(b, a)\np(c, b)\np(a, b)\np(a, a)")
    step = step_of(program, goal)
    assert texts(program, [Resolvent(Kind.GOAL, (program.facts[i],), 2, i) for i in step.matched_facts]) == expected


def test_there_is_no_cap_on_matched_facts():
    program = program_of("\n".join(f"p(a, b{number})" for number in range(500)))
    assert step_of(program, "p(a, X)").matched_facts == list(range(500))


def test_the_excluded_atom_is_not_matched():
    program = program_of("p(a, b)\np(a, c)")
    assert step_of(program, "p(a, X)", query="p(a, b)").matched_facts == [1]
    assert step_of(program, "p(a, X)", query="p(a, b)", exclude_query=False).matched_facts == [0, 1]


def test_a_query_with_variables_excludes_nothing():
    program = program_of("p(a, b)\np(a, c)")
    assert step_of(program, "p(a, X)", query="p(a, X)").matched_facts == [0, 1]


def test_heads_with_constants_and_repeated_variables_match_what_they_unify_with():
    program = program_of(
        """
        p(a, X) <- q(X, X)
        p(b, X) <- q(X, X)
        p(X, X) <- q(X, X)
        p(X, Y) <- q(X, Y)
        q(a, b)
        """
    )
    assert step_of(program, "p(a, b)").matched_rules == [0, 3]
    assert step_of(program, "p(a, a)").matched_rules == [0, 2, 3]
    step = step_of(program, "p(X, X)")
    assert step.matched_rules == [0, 1, 2, 3]
    assert texts(program, step.after_rename) == ["q(a, a)", "q(b, b)", "q(X0, X0)", "q(X0, X0)"]
    assert texts(program, step_of(program, "p(X, b), q(X, Y)").after_rename) == [
        "q(b, b), q(a, X0)",
        "q(b, b), q(b, X0)",
        "q(b, b), q(b, X0)",
        "q(X0, b), q(X0, X1)",
    ]


def test_a_rule_captures_no_variable_of_the_goal():
    program = program_of("p(X, Y) <- q(X, Z), q(Z, Y)\nq(a, b)")
    step = step_of(program, "p(X, Y), q(Z, X), q(Y, W)")
    assert texts(program, step.after_rename) == ["q(X0, X1), q(X1, X2), q(X3, X0), q(X2, X4)"]


def test_the_unifier_reaches_the_rest_of_the_goal_at_once():
    program = program_of("p(Y, X) <- q(X, Y)\nq(a, b)")
    step = step_of(program, "p(X, Y), q(X, Y)")
    assert texts(program, step.after_rename) == ["q(X0, X1), q(X1, X0)"]


def test_rules_come_before_facts_and_every_resolvent_names_its_clause():
    program = program_of("p(a, b)\np(a, c)\nq(b, b)\np(X, Y) <- r(X, Y)\np(X, Y) <- s(Y, X)")
    step = step_of(program, "p(a, X), q(X, X), r(X, a)")
    assert [(r.origin_kind, r.origin) for r in step.after_resolve] == [
        (OriginKind.RULE, 0),
        (OriginKind.RULE, 1),
        (OriginKind.FACT, 0),
        (OriginKind.FACT, 1),
    ]
    assert texts(program, step.after_resolve)[2:] == ["q(b, b), r(b, a)", "q(c, c), r(c, a)"]
    assert texts(program, step.after_prune)[2:] == ["r(b, a)", "q(c, c), r(c, a)"]


def test_pruning_closes_the_gap_and_keeps_the_order():
    program = program_of("p(X, Y) <- r(X, Y), q(a, b), s(X, Y), q(a, b), t(Y, X)\nq(a, b)")
    step = step_of(program, "p(a, b)")
    assert texts(program, step.after_prune) == ["r(a, b), s(a, b), t(b, a)"]


def test_the_first_atom_may_be_pruned_and_only_facts_are():
    program = program_of("p(X, Y) <- q(X, Y), q(Y, Z), q(Y, X)\nq(a, b)")
    assert texts(program, step_of(program, "p(a, b)").after_rename) == ["q(b, X0), q(b, a)"]


def test_the_excluded_atom_is_not_pruned():
    program = program_of("p(a, b)\nq(a, b)\np(X, Y) <- q(X, Y), p(X, Y)")
    step = step_of(program, "p(a, b)", query="p(a, b)")
    assert texts(program, step.after_prune) == ["p(a, b)"]
    assert step.after_revisit == []
    assert step.outcome == Outcome.FAILED
    step = step_of(program, "p(a, b)", query="p(a, b)", exclude_query=False)
    assert step.outcome == Outcome.PROVED


def test_an_empty_resolvent_is_true():
    program = program_of("p(X, Y) <- q(X, Y)\nq(a, b)")
    step = step_of(program, "p(a, b)")
    assert step.after_resolve[0].kind == Kind.GOAL
    assert step.after_prune == [Resolvent(Kind.TRUE, (), OriginKind.RULE, 0)]
    assert step.outcome == Outcome.PROVED


def test_resolvents_are_numbered_from_zero_each():
    program = program_of("p(X, Y) <- q(Z, Y), q(X, W)\np(X, Y) <- q(Z, Z)\nq(a, b)")
    step = step_of(program, "p(a, X), q(X, Y)")
    assert texts(program, step.after_rename) == ["q(X0, X1), q(a, X2), q(X1, X3)", "q(X0, X0), q(X1, X2)"]


def test_goals_visited_before_and_the_current_one_are_dropped():
    program = program_of("p(X, Y) <- p(X, Y)\np(X, Y) <- q(Y, X)\np(X, Y) <- r(X, Y)\nq(a, a)")
    step = step_of(program, "p(a, X)", visited=["q(X, a)"])
    assert texts(program, step.after_rename) == ["p(a, X0)", "q(X0, a)", "r(a, X0)"]
    assert texts(program, step.after_revisit) == ["r(a, X0)"]


def test_a_goal_is_visited_only_in_the_same_order_of_atoms():
    program = program_of("p(X, Y) <- q(X, Y), r(X, Y)")
    step = step_of(program, "p(X, Y)", visited=["r(X, Y), q(X, Y)"])
    assert texts(program, step.after_revisit) == ["q(X0, X1), r(X0, X1)"]


def test_the_first_true_closes_the_step_alone():
    program = program_of("p(X, Y) <- r(X, Y)\np(X, Y) <- q(X, Y)\np(X, Y) <- q(Y, X)\nq(a, b)\nq(b, a)\np(a, b)")
    step = step_of(program, "p(a, b)")
    assert [r.kind for r in step.after_revisit] == [Kind.GOAL, Kind.TRUE, Kind.TRUE, Kind.TRUE]
    assert step.after_close == [Resolvent(Kind.TRUE, (), OriginKind.RULE, 1)]
    assert (step.scores, step.choice, step.log_probability) == ([0.0], 0, 0.0)


def test_a_step_without_resolvents_is_false():
    program = program_of("p(a, b)")
    step = step_of(program, "p(b, X)")
    assert step.after_close == step.after_limit == [FALSE]
    assert step.chosen == FALSE
    assert (step.scores, step.log_probability, step.outcome) == ([0.0], 0.0, Outcome.FAILED)
    assert STAGES.close(situation_of(program, goal_of(program, "p(b, X)")), []) == [FALSE]


def test_close_comes_before_limit_so_that_no_limit_hides_a_proof():
    lines = [f"p(X, Y) <- r{number}(X, Y)" for number in range(5)]
    program = program_of("\n".join([*lines, "p(a, b)"]))
    step = step_of(program, "p(a, b)", max_resolvents=1)
    assert step.outcome == Outcome.PROVED
    assert (step.dropped_atoms, step.dropped_resolvents) == (0, 0)


def test_the_limit_counts_long_resolvents_first_and_then_those_beyond_the_number():
    program = program_of("p(a, b)\nq(a, a)")
    resolvents = [
        resolvent_of(program, text, origin)
        for origin, text in enumerate(["q(X, X), q(X, X), p(X, X)", "p(X, Y)", "p(X, X)", "q(X, X), p(X, Y)"])
    ]
    stages = Stages(close=lambda situation, _: resolvents)
    step = take_step(situation_of(program, goal_of(program, "p(b, X)"), max_atoms=2, max_resolvents=2), stages)
    assert [resolvent.origin for resolvent in step.after_limit] == [1, 2]
    assert (step.dropped_atoms, step.dropped_resolvents) == (1, 1)


def test_a_limit_that_drops_everything_gives_false():
    program = program_of("p(X, Y) <- q(X, Z), q(Z, Y)\nq(a, b)")
    step = step_of(program, "p(X, b)", max_atoms=1)
    assert step.after_limit == [FALSE]
    assert (step.dropped_atoms, step.dropped_resolvents, step.outcome) == (1, 0, Outcome.FAILED)


def test_atoms_are_counted_after_pruning():
    program = program_of("p(X, Y) <- q(X, Y), q(Y, X), r(X, Y)\nq(a, b)\nq(b, a)")
    assert step_of(program, "p(a, b)", max_atoms=1).dropped_atoms == 0


def test_shortest_prefers_fewer_atoms_and_then_fewer_variables():
    program = program_of(
        "p(X, Y) <- q(X, Y), r(X, Y)\np(X, Y) <- q(X, Z)\np(X, Y) <- q(X, Y)\np(X, Y) <- r(X, Y)\ns(a, b)"
    )
    step = step_of(program, "p(a, b)")
    assert step.scores == [-2.0, -1.015625, -1.0, -1.0]
    assert step.choice == 2
    assert step.log_probability == pytest.approx(-math.log(2 + math.exp(-1) + math.exp(-1 / 64)))


def test_of_equal_scores_the_lowest_index_is_chosen():
    program = program_of("p(a, b)")
    assert STAGES.choose(situation_of(program, goal_of(program, "p(a, b)")), [1.0, 3.0, 3.0]) == 1
    assert log_softmax([2.0, 2.0], 1) == pytest.approx(-math.log(2))
    assert log_softmax([5.0], 0) == 0.0
    assert log_softmax([-1e4, 0.0], 1) == 0.0


def test_the_log_softmax_does_not_depend_on_the_order():
    scores = [0.1, -3.7, 2.9, 2.8999999, -0.3, 1e-9]
    values = {log_softmax(scores[n:] + scores[:n], (2 - n) % 6) for n in range(6)}
    assert len(values) == 1


def test_the_depth_limit_is_reached_only_by_an_unfinished_goal():
    program = program_of("p(X, Y) <- r(X, Y)\nr(X, Y) <- q(X, Y)\nq(a, b)")
    assert step_of(program, "p(b, a)", max_depth=5).outcome == Outcome.OPEN
    step = step_of(program, "p(b, a)", depth=4, max_depth=5)
    assert (step.depth, step.outcome) == (5, Outcome.DEPTH_LIMIT)
    assert step_of(program, "r(a, b)", depth=4, max_depth=5).outcome == Outcome.PROVED
    assert step_of(program, "q(b, a)", depth=4, max_depth=5).outcome == Outcome.FAILED


def test_a_step_starts_from_an_open_goal_above_the_depth_limit():
    program = program_of("p(a, b)")
    with pytest.raises(ValueError, match="found none"):
        take_step(situation_of(program, ()))
    with pytest.raises(ValueError, match="found 20"):
        step_of(program, "p(a, b)", depth=20)


def test_it_makes_no_difference_whether_visited_holds_the_current_goal():
    program = program_of("p(X, Y) <- p(X, Y)\np(X, Y) <- q(Y, X)")
    goal = goal_of(program, "p(X, Y)")
    resolvents = [resolvent_of(program, "p(X, Y)"), resolvent_of(program, "q(X, Y)")]
    for visited in ((), (goal,)):
        assert STAGES.revisit(situation_of(program, goal, visited=visited), resolvents) == resolvents[1:]


def test_what_stands_alone_gets_no_score_of_the_policy():
    class Loud:
        def scores(self, goal, resolvents):
            return [float(len(goal)) for _ in resolvents]

    goal = goal_of(program := program_of("p(a, b)"), "p(a, X)")
    situation = situation_of(program, goal, policy=Loud())
    assert STAGES.score(situation, [FALSE]) == STAGES.score(situation, [FALSE._replace(kind=Kind.TRUE)]) == [0.0]
    assert STAGES.score(situation, [resolvent_of(program, "p(a, b)")] * 2) == [1.0, 1.0]
