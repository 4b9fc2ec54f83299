"""The one stage whose fault explains a single step that shows its resolvents and the clauses that made them."""

import pytest

from kgverify import KnowledgeGraph, Limits, Stage
from kgverify.comparison.inference.infer import prefer_one_stage
from kgverify.comparison.inference.single_fault import (
    ALONE,
    StepProgram,
    change_bodies,
    could_be_pruned,
    explain_by_one_stage,
)
from kgverify.comparison.inference.step_difference import StepDifference
from kgverify.comparison.step_pair import StepPair
from kgverify.comparison.step_view import ResolventView, StepView
from kgverify.dialects import Dialect
from kgverify.program.atoms import Atom, NamedAtom, Variable
from kgverify.program.limits import OURS
from kgverify.program.outcomes import DifferenceClass, GoalKind, Origin
from kgverify.program.program import NamedRule
from kgverify.step.clauses import Clauses
from kgverify.step.plain_step import Resolvent

P, Q, R = range(3)
"""Predicates."""
A, B, C, D = range(4)
"""Constants."""
X, Y, Z = -1, -2, -3
HOLE = (-1, -1, -1)


def atom(text: str) -> NamedAtom:
    predicate, first, second = text.split()
    return NamedAtom(predicate, *(Variable(name) if name.isupper() else name for name in (first, second)))


FACTS = ("p a b", "p a c", "p a d", "q b a", "q b c", "r c a", "r c d")
RULES = (("p X Y", "q X Z", "p Z Y"), ("p X X", "r X Y"), ("q X Y", "q Y X"), ("q X Y", "p X Y"))
PROGRAM = KnowledgeGraph(
    "made up",
    train=tuple(map(atom, FACTS)),
    test=(),
    rules=tuple(NamedRule(atom(head), tuple(map(atom, body))) for head, *body in RULES),
).program
FACT_IDS = [tuple(fact) for fact in PROGRAM.facts.tolist()]
QUERY = (R, B, B)
FACTS_FIRST = Dialect(order="facts_first")
FORGETFUL = Dialect(memory="none")

Goal = tuple[tuple[int, int, int], ...]


def rule(number: int, *atoms: tuple[int, int, int], kind: int = GoalKind.GOAL) -> ResolventView:
    return ResolventView(kind, tuple(Atom(*each) for each in atoms), Origin.RULE, number, 0.0)


def fact(head: tuple[int, int, int], *atoms: tuple[int, int, int]) -> ResolventView:
    kind = GoalKind.GOAL if atoms else GoalKind.TRUE
    return ResolventView(kind, tuple(Atom(*each) for each in atoms), Origin.FACT, FACT_IDS.index(head), 0.0)


def end(kind: GoalKind) -> ResolventView:
    return ResolventView(kind, (), Origin.NONE, 0, 0.0)


TRUE, FALSE = end(GoalKind.TRUE), end(GoalKind.FALSE)

START: Goal = ((P, A, X), (R, X, Y))
R0, R1 = rule(0, (Q, A, X), (P, X, Y), (R, Y, Z)), rule(1, (R, A, X), (R, A, Y))
F0, F1, F2 = FACTS_OF_P = [fact((P, A, constant), (R, constant, X)) for constant in (B, C, D)]
ALL = [R0, R1, F0, F1, F2]

SHORT: Goal = ((P, A, X),)
BESIDE = [rule(0, (Q, A, X), (P, X, Y)), rule(1, (R, A, X))]
PROOFS = [fact((P, A, constant)) for constant in (B, C, D)]

PRUNED: Goal = ((Q, C, D), (P, A, C), (R, A, B))
"""Pruning deletes its second atom."""
BY_RULES = [rule(2, (Q, D, C), (R, A, B)), rule(3, (P, C, D), (R, A, B))]


def explain(
    expected,
    actual,
    *,
    goals=(START,),
    dialect=OURS,
    query=QUERY,
    has_origins=True,
    dropped=((0, 0), (0, 0)),
    **limits,
):
    """Explain a step from the last of the goals. dropped: by max_atoms and max_resolvents, on each side; None: unknown."""
    clauses = Clauses(PROGRAM, exclude_query=True, dialect=dialect)
    program = StepProgram(clauses, Limits(dialect=dialect, **limits), goals, query)
    start = tuple(Atom(*each) for each in goals[-1])
    sides = [
        StepView(0, start, tuple(side), *counts, 0, 0)
        for side, counts in zip((expected, actual), dropped or ((0, 0), (0, 0)), strict=True)
    ]
    return explain_by_one_stage(program, StepPair(*sides, has_origins=has_origins, has_counts=dropped is not None))


def names_of(found):
    return [(each.stage.value, each.kind.value) for each in found]


def check(found, stage, kind, evidence):
    assert names_of(found[:1]) == [(stage, kind)]
    assert found[0].evidence == f"{evidence}; {ALONE}"


@pytest.mark.parametrize(
    ("actual", "stage", "words"),
    [
        ([*FACTS_OF_P, R0, R1], "resolve", "rules and facts are put together in another order"),
        ([R0, F0, R1, F1, F2], "resolve", "rules and facts are put together in another order"),
        (ALL[::-1], "resolve", "the whole list is reversed"),
        ([R0, R1, F2, F1, F0], "match_facts", "the facts are tried in the reverse order"),
        ([R1, R0, F0, F1, F2], "match_rules", "the rules are tried in the reverse order"),
        ([R0, R1, F1, F0, F2], "match_facts", "the facts are tried in another order"),
        ([R1, F0, R0, F1, F2], "match_rules", "the rules are tried in another order"),
    ],
)
def test_the_same_resolvents_in_another_order_name_who_orders_them(actual, stage, words):
    check(explain(ALL, actual), stage, "reordered", words)


def test_where_clauses_of_one_kind_match_the_order_is_that_of_their_matching():
    words = "the whole list is reversed"
    check(explain(BY_RULES, BY_RULES[::-1], goals=(PRUNED,)), "match_rules", "reordered", words)
    by_facts = [fact((R, C, constant), (Q, constant, X)) for constant in (A, D)]
    found = explain(by_facts, by_facts[::-1], goals=(((R, C, X), (Q, X, Y)),))
    check(found, "match_facts", "reordered", words)


@pytest.mark.parametrize(
    ("actual", "stage", "kind", "words"),
    [
        (ALL[:-1], "match_facts", "missing", "1 fact missing, none extra"),
        (ALL[:2], "match_facts", "missing", "3 facts missing, none extra"),
        (ALL[1:], "match_rules", "missing", "1 rule missing, none extra"),
        (ALL[1:-1], "match_rules", "missing", "2 clauses missing, none extra"),
        ([*ALL, fact((Q, B, A), (R, A, X))], "match_facts", "extra", "1 fact extra, none missing"),
        ([*ALL[:-1], fact((Q, B, A), (R, A, X))], "match_facts", "substituted", "1 fact missing, 1 extra"),
    ],
)
def test_clauses_that_are_lost_or_added_are_counted(actual, stage, kind, words):
    check(explain(ALL, actual), stage, kind, words)


@pytest.mark.parametrize("has_origins", [True, False])
def test_the_query_that_serves_as_a_fact_is_an_extra_fact(has_origins):
    found = explain([R0, R1, F1, F2], ALL, query=(P, A, B), has_origins=has_origins)
    check(found, "match_facts", "extra", "1 fact extra, none missing")


def test_equal_lists_of_which_other_numbers_were_dropped_name_the_clauses_that_were_not_made():
    def of_counts(num, *dropped, **limits):
        return explain(ALL[:num], ALL[:num], dropped=dropped, max_resolvents=num, **limits)

    counts = "dropped (by max_atoms, by max_resolvents): expected"
    found = of_counts(2, (0, 3), (0, 2))
    check(found, "match_facts", "missing", f"{counts} (0, 3), actual (0, 2): 1 resolvent lost before the limits")
    check(of_counts(2, (0, 3), (0, 4)), "limit", "limit", f"{counts} (0, 3), actual (0, 4)")
    check(of_counts(2, (0, 3), (0, 0)), "limit", "limit", f"{counts} (0, 3), actual (0, 0)")
    # A rule and three facts were dropped, and either may be the one that was not made.
    check(of_counts(1, (0, 4), (0, 3)), "limit", "limit", f"{counts} (0, 4), actual (0, 3)")
    assert of_counts(1, (0, 4), (0, 3))[0].confidence < of_counts(2, (0, 3), (0, 4))[0].confidence


def test_an_empty_list_read_as_a_proof_is_a_fault_of_close():
    dead: Goal = ((R, A, X),)
    check(explain([FALSE], [TRUE], goals=(dead,)), "close", "false_proof", "TRUE stands for an empty list")
    # Without origins, any clause may have made it.
    assert explain([FALSE], [TRUE], goals=(dead,), has_origins=False) == []
    check(explain([FALSE], [], goals=(dead,)), "close", "missing", "the list ends with no end, expected FALSE")
    check(
        explain([FALSE], [FALSE] * 2, goals=(dead,)),
        "close",
        "extra",
        "the list ends with FALSE, FALSE, expected FALSE",
    )
    stop = end(GoalKind.STOP)
    check(explain([FALSE], [stop], goals=(dead,)), "close", "outcome", "the list ends with STOP, expected FALSE")


def test_atoms_beside_a_proof_are_a_fault_of_prune_if_all_are_facts():
    def beside(*atoms):
        actual = ResolventView(GoalKind.TRUE, tuple(Atom(*each) for each in atoms), *PROOFS[0].clause, 0.0)
        return explain(PROOFS[:1], [actual], goals=(SHORT,))

    check(beside((P, A, B)), "prune", "malformed", "atoms left beside TRUE: 1")
    check(beside((P, A, B), HOLE), "prune", "malformed", "atoms left beside TRUE: 2")
    check(beside((P, A, B), (R, A, X)), "close", "malformed", "atoms left beside TRUE: 2")


def test_of_several_proofs_the_first_one_is_offered_alone():
    check(
        explain(PROOFS[:1], PROOFS[2:], goals=(SHORT,)), "close", "substituted", "the last proof is kept, not the first"
    )
    every = [*BESIDE, *PROOFS]
    check(explain(PROOFS[:1], every, goals=(SHORT,)), "close", "extra", "resolvents beside a proof stay")
    # A list that the program does not give is not explained, nor is one of a goal without atoms.
    assert explain([FALSE], [TRUE], goals=((),)) == []
    assert explain(PROOFS[:2], PROOFS[2:], goals=(SHORT,)) == []
    assert explain(PROOFS[:1], PROOFS[:1], goals=(SHORT,)) == []


def test_proofs_that_are_lost_together_may_be_a_fault_of_close():
    found = explain(PROOFS[:1], BESIDE, goals=(SHORT,))
    # The catalogue's class of a goal that is closed by others than its proof.
    assert names_of(found) == [("match_facts", "missing"), ("close", "outcome")]
    assert found[1].evidence.startswith("all 3 proofs of the step are lost")
    # Pruning leaves nothing of what two rules give.
    by_rules: Goal = ((Q, A, B),)
    proof = rule(2, kind=GoalKind.TRUE)
    assert names_of(explain([proof], [FALSE], goals=(by_rules,))) == [("match_rules", "missing"), ("close", "missing")]
    unknown = explain([proof], [FALSE], goals=(by_rules,), has_origins=False)
    assert names_of(unknown) == [("match_rules", "proof_lost"), ("close", "proof_lost")]


def test_the_resolvents_of_another_atom_are_a_fault_of_select():
    # The fact r c a binds X to c, and p a c is pruned.
    check(explain(ALL, [fact((R, C, A))]), "select", "substituted", "atom 2 of the goal is selected")


def test_the_resolvents_of_an_earlier_goal_are_a_fault_of_advance():
    earlier: Goal = ((Q, A, X),)
    stale = [rule(2, (Q, X, A)), rule(3, (P, A, X))]
    found = explain(ALL, stale, goals=(earlier, ((R, D, A),), START))
    check(found, "advance", "stale", "the resolvents are those of the step 2 before this one")


def test_an_empty_list_is_rather_that_of_lost_clauses_than_of_an_earlier_dead_end():
    found = names_of(explain(ALL, [FALSE], goals=(((R, A, X),), START)))
    assert (found[0], found[-1]) == (("match_rules", "missing"), ("advance", "stale"))


def test_goals_are_visited_before_if_they_are_so_without_their_facts():
    start: Goal = ((Q, A, B), (P, A, C), (R, A, B))
    left = [rule(number, (R, A, B)) for number in (2, 3)]
    found = explain(left, [FALSE], goals=(((R, A, B),), start), dialect=FORGETFUL)
    check(found, "revisit", "missing", "goals visited before are dropped")


def test_goals_visited_before_that_stay_or_are_dropped_are_a_fault_of_revisit():
    cyclic: Goal = ((Q, X, Y), (R, A, A))
    """A rule gives it again, and two facts give the goal before it."""
    made = [rule(2, *cyclic), rule(3, (P, X, Y), (R, A, A)), *(fact((Q, B, each), (R, A, A)) for each in (A, C))]
    goals = (((R, A, A),), cyclic)
    check(explain(made[1:2], made, goals=goals), "revisit", "extra", "goals visited before stay")
    check(explain(made[1:2], made[1:], goals=goals), "revisit", "extra", "only the current goal is not visited again")
    exempting = Dialect(exempts_terminal=True)
    check(explain(made[1:2], made, goals=goals, dialect=exempting), "revisit", "extra", "goals visited before stay")
    dropped = explain(made, made[1:2], goals=goals, dialect=FORGETFUL)
    check(dropped, "revisit", "missing", "goals visited before are dropped")


def test_goals_compared_as_sets_and_not_as_sequences_are_a_fault_of_revisit():
    permuted: Goal = ((P, X, Y), (R, Y, Z), (Q, A, X))
    found = explain(ALL, ALL[1:], goals=(permuted, START))
    check(found, "revisit", "missing", "visited goals are compared as by the memory set")
    found = explain(ALL[1:], ALL, goals=(permuted, START), dialect=Dialect(memory="set"))
    check(found, "revisit", "extra", "goals visited before stay")


@pytest.mark.parametrize(
    ("atoms", "stage", "kind", "words"),
    [
        (((Q, D, C), (P, A, C), (R, A, B)), "prune", "extra", "1 atom extra after pruning"),
        (((Q, D, C),), "prune", "missing", "1 atom missing after pruning"),
        (((Q, D, C), HOLE, (R, A, B)), "prune", "malformed", "holes stay where facts were deleted"),
        (((R, A, B), (Q, D, C)), "prune", "substituted", "the atoms that pruning leaves are in another order"),
        (((R, A, B),), "prune", "missing", "1 atom missing after pruning"),
        (((Q, C, D), (R, A, B)), "resolve", "substituted", "the same clause gave different atoms"),
    ],
)
def test_other_atoms_of_the_same_clause_are_a_fault_of_prune_or_resolve(atoms, stage, kind, words):
    check(explain(BY_RULES, [rule(2, *atoms), BY_RULES[1]], goals=(PRUNED,)), stage, kind, words)


def test_an_atom_of_the_end_of_a_body_that_is_like_a_fact_is_rather_pruned():
    start: Goal = ((P, A, X), (P, A, B), (R, X, Y))
    """Pruning deletes its second atom, and leaves p X Y of the body of the first rule."""
    found = explain(ALL, [rule(0, (Q, A, X), (R, Y, Z)), *ALL[1:]], goals=(start,))
    check(found, "prune", "missing", "1 atom missing after pruning")


def test_atoms_that_stay_in_every_resolvent_are_a_fault_of_prune():
    left = [rule(2, (Q, D, C), (P, A, C), (R, A, B)), rule(3, (P, C, D), (P, A, C), (R, A, B))]
    check(explain(BY_RULES, left, goals=(PRUNED,)), "prune", "extra", "atoms that are facts stay")


def test_others_than_the_first_resolvents_are_a_fault_of_limit():
    both = (0, 2), (0, 2)
    found = explain(ALL[:3], ALL[1:4], dropped=both, max_resolvents=3)
    check(found, "limit", "limit", "3 of 5 resolvents are kept, and others than the first 3")
    # One less was dropped, so that one was not made.
    found = explain(ALL[:3], ALL[1:4], dropped=((0, 2), (0, 1)), max_resolvents=3)
    check(found, "match_rules", "missing", "1 rule missing, none extra")
    found = explain(ALL[:3], [TRUE], dropped=both, max_resolvents=3)
    check(found, "close", "false_proof", "TRUE stands where a list is longer than max_resolvents")
    # FALSE is no proof.
    found = explain(ALL[:3], [FALSE], dropped=((0, 2), (0, 0)), max_resolvents=3)
    check(found, "match_rules", "missing", "5 clauses missing, none extra")


def test_where_a_list_is_cut_another_order_shows_another_part():
    def cut(*actual):
        return names_of(explain([F0, F1], actual, dialect=FACTS_FIRST, dropped=None, max_resolvents=2))

    assert cut(F1, F2) == [("limit", "limit"), ("match_facts", "missing"), ("match_facts", "reordered")]
    # Neither fewer resolvents nor others are an order of the same.
    assert ("match_facts", "reordered") not in cut(F2)
    assert ("match_facts", "reordered") not in cut(F2, fact((Q, B, A), (R, A, X)))


@pytest.mark.parametrize(
    ("most", "expected", "actual", "dropped", "words"),
    [
        (3, ALL, ALL[1:], ((0, 0), (1, 0)), "resolvents of max_atoms atoms are dropped"),
        (2, ALL[1:], ALL, ((1, 0), (0, 0)), "resolvents of one atom more than max_atoms stay"),
        (1, ALL[2:], ALL, ((2, 0), (0, 0)), "resolvents of more than max_atoms atoms stay"),
        (
            2,
            ALL[1:],
            [rule(0, *R0.atoms[:2]), *ALL[1:]],
            ((1, 0), (1, 0)),
            "resolvents of more than max_atoms atoms are cut",
        ),
    ],
)
def test_another_limit_of_atoms_is_a_fault_of_limit(most, expected, actual, dropped, words):
    check(explain(expected, actual, dropped=dropped, max_atoms=most), "limit", "limit", words)


def test_one_missing_resolvent_as_long_as_the_limit_is_rather_lost_where_nothing_counts_it():
    found = explain(ALL, ALL[1:], dropped=None, max_atoms=3)
    assert names_of(found) == [("match_rules", "missing"), ("limit", "limit")]


def test_stages_that_explain_as_much_are_named_together():
    found = prefer_one_stage(
        [[guess(Stage.PRUNE), guess(Stage.LIMIT), guess(Stage.RESOLVE)], [guess(Stage.PRUNE), guess(Stage.RESOLVE)]]
    )
    assert [each.stage for each in found] == [Stage.PRUNE] * 2
    assert all(each.evidence.endswith("cannot tell it from a fault of resolve") for each in found)


def test_bodies_of_which_all_lack_an_atom_or_are_turned_are_changed():
    made = [Resolvent(((Q, A, X), (P, X, Y), (R, B, C)), Origin.RULE, 0), Resolvent(((R, B, C),), Origin.FACT, 0)]
    bodies = [changed[0].atoms[:-1] for _, changed in change_bodies(made, 1)]
    assert bodies == [((Q, A, X),), ((P, X, Y),), ((P, X, Y), (Q, A, X))]
    assert all(changed[1] == made[1] for _, changed in change_bodies(made, 1))
    shorter = [made[0]._replace(atoms=((Q, A, X), (R, B, C))), made[1]]
    assert not could_be_pruned(made, shorter, lambda atom: False)
    assert could_be_pruned(made, shorter, lambda atom: True)


def guess(stage):
    return StepDifference(stage, DifferenceClass.MISSING, "", 0.5, (), ())


@pytest.mark.parametrize(
    ("guesses", "chosen"),
    [
        # The only stage that explains both steps, though it is not the likeliest of either.
        (["limit prune", "match_facts prune"], "prune prune"),
        (["limit", "limit match_facts"], "limit limit"),
        (["limit prune", "match_facts prune", "close prune"], "prune prune prune"),
        # No stage explains both.
        (["limit prune", "match_facts"], "limit match_facts"),
        # Two stages do: the likelier one, and of equally likely ones the earlier.
        (["limit prune", "prune limit", "limit prune"], "limit limit limit"),
        (["limit prune", "prune limit"], "prune prune"),
    ],
)
def test_several_steps_have_one_stage_if_it_explains_them_all(guesses, chosen):
    found = prefer_one_stage([[guess(Stage(name)) for name in each.split()] for each in guesses])
    assert [each.stage.value for each in found] == chosen.split()
