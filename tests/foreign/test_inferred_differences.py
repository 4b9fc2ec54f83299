"""Stage and class of single differences between steps that show nothing but goals and resolvents."""

import pytest

from kgverify import KnowledgeGraph
from kgverify.comparison.inference.origins import OriginInference
from kgverify.comparison.inference.step_difference import (
    GUESSED,
    OPEN,
    Given,
    LimitsSeen,
    StepDifference,
    explain_difference,
)
from kgverify.comparison.step_pair import StepPair
from kgverify.comparison.step_view import ResolventView, StepView
from kgverify.program.atoms import Atom, NamedAtom, Variable
from kgverify.program.outcomes import GoalKind
from kgverify.program.program import NamedRule
from kgverify.step.clauses import Clauses

P, Q, R = range(3)
"""Predicates."""
A, B, C, D = range(4)
"""Constants."""
X, Y, Z = -1, -2, -3


def term(name: str) -> str | Variable:
    return Variable(name) if name.isupper() else name


def atom(text: str) -> NamedAtom:
    predicate, first, second = text.split()
    return NamedAtom(predicate, term(first), term(second))


FACTS = ("p a b", "p a c", "p a d", "q b c", "r c d")
RULES = (("p X Y", "q X Z", "p Z Y"), ("p X X", "r X Y"), ("q X Y", "q Y X"))
GRAPH = KnowledgeGraph(
    "made up",
    train=tuple(map(atom, FACTS)),
    test=(atom("q b c"),),
    rules=tuple(NamedRule(atom(head), tuple(map(atom, body))) for head, *body in RULES),
)
INFERENCE = OriginInference(Clauses(GRAPH.program, exclude_query=True))
QUERY = (Q, B, C)
UNLIMITED = LimitsSeen(frozenset(), frozenset(), 9, 9)

Goal = tuple[tuple[int, int, int], ...]


def resolvent(kind: int = GoalKind.GOAL, *atoms: tuple[int, int, int]) -> ResolventView:
    return ResolventView(kind, tuple(Atom(*each) for each in atoms), 0, 0, 0.0)


def goal(*atoms: tuple[int, int, int]) -> ResolventView:
    return resolvent(GoalKind.GOAL, *atoms)


TRUE, FALSE = resolvent(GoalKind.TRUE), resolvent(GoalKind.FALSE)

START: Goal = ((P, A, X), (R, X, Y))
"""A goal that a rule and three facts match."""
BY_RULE = goal((Q, A, X), (P, X, Y), (R, Y, Z))
BY_FACTS = [goal((R, constant, X)) for constant in (B, C, D)]
ALL = [BY_RULE, goal((R, A, X), (R, A, Y)), *BY_FACTS]


def step(*resolvents: ResolventView, start: Goal = START) -> StepView:
    return StepView(0, tuple(Atom(*each) for each in start), resolvents, 0, 0, 0, 0)


def explain(
    expected: list[ResolventView],
    actual: list[ResolventView],
    *,
    start: Goal = START,
    earlier: tuple[StepView, ...] = (),
    limits: LimitsSeen = UNLIMITED,
    has_program: bool = True,
) -> StepDifference:
    origins = INFERENCE.at(start, QUERY) if has_program else None
    given = Given(origins, earlier, (limits, limits), (3, 4))
    return explain_difference(StepPair(step(*expected, start=start), step(*actual, start=start)), given)


@pytest.mark.parametrize(
    ("expected", "actual", "stage", "kind"),
    [
        (ALL, ALL[:-1], "match_facts", "missing"),
        (ALL, ALL[1:], "match_rules", "missing"),
        (ALL[:-1], ALL, "match_facts", "extra"),
        (ALL, [], "close", "missing"),
        (ALL[2:], [], "match_facts", "missing"),
        (ALL[2:], [FALSE], "match_facts", "missing"),
        ([FALSE], [], "close", "missing"),
        ([], [FALSE], "close", "extra"),
        ([TRUE], ALL, "close", "proof_lost"),
        ([TRUE], [FALSE], "close", "proof_lost"),
        (ALL, [TRUE], "close", "false_proof"),
        (ALL, [*ALL, TRUE], "close", "false_proof"),
        (ALL, [resolvent(GoalKind.TRUE, (R, A, X))], "close", "false_proof"),
        ([TRUE], [TRUE, *ALL], "close", "outcome"),
        ([TRUE], [resolvent(GoalKind.TRUE, (R, A, X))], "close", "malformed"),
        ([TRUE], [resolvent(GoalKind.TRUE, (P, A, B))], "prune", "malformed"),
        (ALL, [*ALL, goal()], "limit", "malformed"),
        (ALL, [*ALL[:-1], goal()], "prune", "malformed"),
        (ALL, [*ALL, resolvent(3)], "close", "malformed"),
        (ALL, [*ALL[:-1], goal((-1, 0, 0), (R, D, X))], "prune", "malformed"),
        (ALL, [*ALL, goal((R, 900, X))], "resolve", "malformed"),
        ([*ALL, goal((R, 900, X))], ALL, "resolve", "malformed"),
        (ALL, [*ALL[:-1], goal((-1, 0, 0), (R, D, X)), resolvent(3)], "prune", "malformed"),
        (ALL, [ALL[0], ALL[1], *ALL[:1:-1]], "match_facts", "reordered"),
        (ALL, [ALL[1], ALL[0], *ALL[2:]], "match_rules", "reordered"),
        (ALL, ALL[::-1], "resolve", "reordered"),
        ([ALL[0]], [goal((Q, A, Y), (P, Y, Z), (R, Z, X))], "rename", "renamed"),
        ([ALL[0]], [goal((P, X, Y), (Q, A, X), (R, Y, Z))], "resolve", "substituted"),
        ([ALL[0]], [goal((Q, A, X), (P, X, Y), (R, X, Z))], "resolve", "substituted"),
        (ALL[2:], [*ALL[2:-1], goal((R, X, Y))], "resolve", "substituted"),
        (ALL, [*ALL, goal((R, B, C), (Q, C, C))], "resolve", "unsound"),
        (ALL, [*ALL[:-1], goal((R, B, C), (Q, C, C))], "resolve", "unsound"),
        (ALL, [FALSE, FALSE], "close", "outcome"),
    ],
)
def test_a_difference_has_a_stage_and_a_class(expected, actual, stage, kind):
    found = explain(expected, actual)
    assert (found.stage.value, found.kind.value) == (stage, kind), found.evidence
    assert found.evidence
    assert 0 < found.confidence <= 1


def test_pruning_too_little_or_too_much_is_a_fault_of_prune():
    start: Goal = ((Q, A, B), (P, A, C), (R, A, B))
    right, unpruned = goal((Q, B, A), (R, A, B)), goal((Q, B, A), (P, A, C), (R, A, B))
    found = explain([right], [unpruned], start=start)
    assert (found.stage.value, found.kind.value) == ("prune", "extra")
    found = explain([right], [goal((R, A, B))], start=start)
    assert (found.stage.value, found.kind.value) == ("prune", "missing")


def test_the_query_may_not_serve_as_a_fact():
    found = explain([FALSE], [goal((R, A, B))], start=(QUERY, (R, A, B)))
    assert (found.stage.value, found.kind.value) == ("match_facts", "extra")
    assert "the query" in found.evidence


def test_a_goal_visited_before_belongs_to_revisit():
    earlier = (step(*ALL, start=((R, D, X),)),)
    assert explain(ALL[:-1], ALL, earlier=earlier).stage == "revisit"
    assert explain(ALL, ALL[:-1], earlier=earlier).stage == "revisit"


def test_of_two_goals_visited_before_either_may_stay_in_the_place_of_the_other():
    earlier = tuple(step(*ALL, start=((R, constant, X),)) for constant in (C, D))
    found = explain(ALL[:-1], [*ALL[:-2], ALL[-1]], earlier=earlier)
    assert (found.stage.value, found.kind.value) == ("revisit", "substituted")
    assert found.evidence.startswith("1 resolvent missing, 1 extra: they ")


def test_resolvents_of_an_earlier_step_are_stale():
    earlier = (step(goal((Q, C, C)), start=((R, A, A),)),)
    found = explain(ALL, [goal((Q, C, C))], earlier=earlier)
    assert (found.stage.value, found.kind.value) == ("advance", "stale")


def test_another_choice_at_a_full_list_belongs_to_limit():
    full = LimitsSeen(frozenset({3}), frozenset(), 3, 9)
    found = explain(ALL[:3], ALL[:1:-1], limits=full)
    assert (found.stage.value, found.kind.value) == ("limit", "limit")
    # Here the actual side goes on behind a fact that it lacks.
    found = explain(ALL[:3], [ALL[0], ALL[1], ALL[3]], limits=full)
    assert (found.stage.value, found.kind.value) == ("match_facts", "missing")


def test_facts_lost_before_a_limit_let_in_fewer_than_it_allows():
    full = LimitsSeen(frozenset({4}), frozenset(), 4, 9)
    found = explain(ALL[:4], [ALL[0], ALL[1], ALL[4]], limits=full)
    assert (found.stage.value, found.kind.value) == ("match_facts", "missing")
    assert found.evidence.startswith("2 facts missing, none extra, 1 let in by the limit in their place")


def test_what_a_rule_and_a_fact_both_make_is_lost_by_either():
    rules = (NamedRule(atom("q X Y"), (atom("q Y X"),)),)
    graph = KnowledgeGraph("two ways", train=(atom("q a b"), atom("q b a")), test=(atom("q a a"),), rules=rules)
    origins = OriginInference(Clauses(graph.program, exclude_query=True)).at(((0, A, B), (0, A, X)), (0, A, A))
    rest = goal((0, A, X))
    steps = (step(*[rest] * num, start=((0, A, B), (0, A, X))) for num in (2, 1))
    found = explain_difference(StepPair(*steps), Given(origins, (), (UNLIMITED, UNLIMITED), (1, 2)))
    assert (found.kind.value, found.confidence) == ("missing", OPEN)


def test_what_no_clause_makes_is_a_guess_where_it_is_missing():
    found = explain([*ALL, goal((R, B, C), (Q, C, C))], ALL)
    assert (found.kind.value, found.confidence) == ("missing", GUESSED)
