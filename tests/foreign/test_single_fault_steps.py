"""The one stage whose fault explains a single step that shows its resolvents and the clauses that made them."""

import pytest

from kgverify import KnowledgeGraph, Limits, Stage
from kgverify.comparison.inference.infer import prefer_one_stage
from kgverify.comparison.inference.single_fault import (
    ALONE,
    StepProgram,
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
    return [f"{each.stage} {each.kind}" for each in found]


NOT_OURS = (Q, B, A), (R, A, X)
"""A fact that does not match the goal, and what it would leave."""
CYCLIC: Goal = ((Q, X, Y), (R, A, A))
"""A rule gives it again, and two facts give the goal before it."""
OF_CYCLIC = [rule(2, *CYCLIC), rule(3, (P, X, Y), (R, A, A)), *(fact((Q, B, each), (R, A, A)) for each in (A, C))]
AFTER = {"goals": (((R, A, A),), CYCLIC)}
DEAD = {"goals": (((R, A, X),),)}
ALONE_IN_GOAL = {"goals": (SHORT,)}
PRUNES = {"goals": (PRUNED,)}
PERMUTED = {"goals": (((P, X, Y), (R, Y, Z), (Q, A, X)), START)}
AN_ATOM_LIKE_A_FACT = {"goals": (((P, A, X), (P, A, B), (R, X, Y)),)}
"""Pruning deletes its second atom, and leaves p X Y of the body of the first rule."""
BY_FACTS_OF_R = [fact((R, C, constant), (Q, constant, X)) for constant in (A, D)]
COUNTS = "dropped (by max_atoms, by max_resolvents): expected"


def with_atoms(*atoms):
    return [rule(2, *atoms), BY_RULES[1]]


def beside_proof(*atoms):
    return [ResolventView(GoalKind.TRUE, tuple(Atom(*each) for each in atoms), *PROOFS[0].clause, 0.0)]


def dropped(expected, actual, **limits):
    return {"dropped": (expected, actual), **limits}


ROWS = [
    # The same resolvents in another order name who orders them.
    (ALL, [*FACTS_OF_P, R0, R1], {}, "resolve reordered: rules and facts are put together in another order"),
    (ALL, [R0, F0, R1, F1, F2], {}, "resolve reordered: rules and facts are put together in another order"),
    (ALL, ALL[::-1], {}, "resolve reordered: the whole list is reversed"),
    (ALL, [R0, R1, F2, F1, F0], {}, "match_facts reordered: the facts are tried in the reverse order"),
    (ALL, [R1, R0, F0, F1, F2], {}, "match_rules reordered: the rules are tried in the reverse order"),
    (ALL, [R0, R1, F1, F0, F2], {}, "match_facts reordered: the facts are tried in another order"),
    (ALL, [R1, F0, R0, F1, F2], {}, "match_rules reordered: the rules are tried in another order"),
    (BY_RULES, BY_RULES[::-1], {"goals": (PRUNED,)}, "match_rules reordered: the whole list is reversed"),
    (
        BY_FACTS_OF_R,
        BY_FACTS_OF_R[::-1],
        {"goals": (((R, C, X), (Q, X, Y)),)},
        "match_facts reordered: the whole list is reversed",
    ),
    # Clauses that are lost or added are counted.
    (ALL, ALL[:-1], {}, "match_facts missing: 1 fact missing, none extra"),
    (ALL, ALL[:2], {}, "match_facts missing: 3 facts missing, none extra"),
    (ALL, ALL[1:], {}, "match_rules missing: 1 rule missing, none extra"),
    (ALL, ALL[1:-1], {}, "match_rules missing: 2 clauses missing, none extra"),
    (ALL, [*ALL, fact(*NOT_OURS)], {}, "match_facts extra: 1 fact extra, none missing"),
    (ALL, [*ALL[:-1], fact(*NOT_OURS)], {}, "match_facts substituted: 1 fact missing, 1 extra"),
    ([R0, R1, F1, F2], ALL, {"query": (P, A, B)}, "match_facts extra: 1 fact extra, none missing"),
    (
        [R0, R1, F1, F2],
        ALL,
        {"query": (P, A, B), "has_origins": False},
        "match_facts extra: 1 fact extra, none missing",
    ),
    # Equal lists of which other numbers were dropped.
    (
        ALL[:2],
        ALL[:2],
        dropped((0, 3), (0, 2), max_resolvents=2),
        f"match_facts missing: {COUNTS} (0, 3), actual (0, 2): 1 resolvent lost before the limits",
    ),
    (ALL[:2], ALL[:2], dropped((0, 3), (0, 4), max_resolvents=2), f"limit limit: {COUNTS} (0, 3), actual (0, 4)"),
    (ALL[:2], ALL[:2], dropped((0, 3), (0, 0), max_resolvents=2), f"limit limit: {COUNTS} (0, 3), actual (0, 0)"),
    # A rule and three facts were dropped, and either may be the one that was not made.
    (ALL[:1], ALL[:1], dropped((0, 4), (0, 3), max_resolvents=1), f"limit limit: {COUNTS} (0, 4), actual (0, 3)"),
    # An end in the place of another.
    ([FALSE], [TRUE], DEAD, "close false_proof: TRUE stands for an empty list"),
    ([FALSE], [], DEAD, "close missing: the list ends with no end, expected FALSE"),
    ([FALSE], [FALSE] * 2, DEAD, "close extra: the list ends with FALSE, FALSE, expected FALSE"),
    ([FALSE], [end(GoalKind.STOP)], DEAD, "close outcome: the list ends with STOP, expected FALSE"),
    # Proofs.
    (PROOFS[:1], beside_proof((P, A, B)), ALONE_IN_GOAL, "prune malformed: atoms left beside TRUE: 1"),
    (PROOFS[:1], beside_proof((P, A, B), HOLE), ALONE_IN_GOAL, "prune malformed: atoms left beside TRUE: 2"),
    (PROOFS[:1], beside_proof((P, A, B), (R, A, X)), ALONE_IN_GOAL, "close malformed: atoms left beside TRUE: 2"),
    (PROOFS[:1], PROOFS[2:], ALONE_IN_GOAL, "close substituted: the last proof is kept, not the first"),
    (PROOFS[:1], [*BESIDE, *PROOFS], ALONE_IN_GOAL, "close extra: resolvents beside a proof stay"),
    # The resolvents of another atom (r c a binds X to c, and p a c is pruned), and of an earlier goal.
    (ALL, [fact((R, C, A))], {}, "select substituted: atom 2 of the goal is selected"),
    (
        ALL,
        [rule(2, (Q, X, A)), rule(3, (P, A, X))],
        {"goals": (((Q, A, X),), ((R, D, A),), START)},
        "advance stale: the resolvents are those of the step 2 before this one",
    ),
    # Goals visited before.
    (
        [rule(number, (R, A, B)) for number in (2, 3)],
        [FALSE],
        {"goals": (((R, A, B),), ((Q, A, B), (P, A, C), (R, A, B))), "dialect": FORGETFUL},
        "revisit missing: goals visited before are dropped",
    ),
    (OF_CYCLIC[1:2], OF_CYCLIC, AFTER, "revisit extra: goals visited before stay"),
    (OF_CYCLIC[1:2], OF_CYCLIC[1:], AFTER, "revisit extra: only the current goal is not visited again"),
    (
        OF_CYCLIC,
        OF_CYCLIC[1:2],
        {**AFTER, "dialect": FORGETFUL},
        "revisit missing: goals visited before are dropped",
    ),
    (ALL, ALL[1:], PERMUTED, "revisit missing: visited goals are compared as by the memory set"),
    (ALL[1:], ALL, {**PERMUTED, "dialect": Dialect(memory="set")}, "revisit extra: goals visited before stay"),
    # Other atoms of the same clause.
    (BY_RULES, with_atoms((Q, D, C), (P, A, C), (R, A, B)), PRUNES, "prune extra: 1 atom extra after pruning"),
    (BY_RULES, with_atoms((Q, D, C)), PRUNES, "prune missing: 1 atom missing after pruning"),
    (BY_RULES, with_atoms((Q, D, C), HOLE, (R, A, B)), PRUNES, "prune malformed: holes stay where facts were deleted"),
    (
        BY_RULES,
        with_atoms((R, A, B), (Q, D, C)),
        PRUNES,
        "prune substituted: the atoms that pruning leaves are in another order",
    ),
    (BY_RULES, with_atoms((R, A, B)), PRUNES, "prune missing: 1 atom missing after pruning"),
    (
        BY_RULES,
        with_atoms((Q, C, D), (R, A, B)),
        PRUNES,
        "resolve substituted: the same clause gave different atoms",
    ),
    (
        BY_RULES,
        [rule(2, (Q, D, C), (P, A, C), (R, A, B)), rule(3, (P, C, D), (P, A, C), (R, A, B))],
        PRUNES,
        "prune extra: atoms that are facts stay",
    ),
    (
        ALL,
        [rule(0, (Q, A, X), (R, Y, Z)), *ALL[1:]],
        AN_ATOM_LIKE_A_FACT,
        "prune missing: 1 atom missing after pruning",
    ),
    # The limits.
    (
        ALL[:3],
        ALL[1:4],
        dropped((0, 2), (0, 2), max_resolvents=3),
        "limit limit: 3 of 5 resolvents are kept, and others than the first 3",
    ),
    # One less was dropped, so that one was not made.
    (
        ALL[:3],
        ALL[1:4],
        dropped((0, 2), (0, 1), max_resolvents=3),
        "match_rules missing: 1 rule missing, none extra",
    ),
    (
        ALL[:3],
        [TRUE],
        dropped((0, 2), (0, 2), max_resolvents=3),
        "close false_proof: TRUE stands where a list is longer than max_resolvents",
    ),
    # FALSE is no proof.
    (
        ALL[:3],
        [FALSE],
        dropped((0, 2), (0, 0), max_resolvents=3),
        "match_rules missing: 5 clauses missing, none extra",
    ),
    (ALL, ALL[1:], dropped((0, 0), (1, 0), max_atoms=3), "limit limit: resolvents of max_atoms atoms are dropped"),
    (
        ALL[1:],
        ALL,
        dropped((1, 0), (0, 0), max_atoms=2),
        "limit limit: resolvents of one atom more than max_atoms stay",
    ),
    (ALL[2:], ALL, dropped((2, 0), (0, 0), max_atoms=1), "limit limit: resolvents of more than max_atoms atoms stay"),
    (
        ALL[1:],
        [rule(0, *R0.atoms[:2]), *ALL[1:]],
        dropped((1, 0), (1, 0), max_atoms=2),
        "limit limit: resolvents of more than max_atoms atoms are cut",
    ),
]


@pytest.mark.parametrize(("expected", "actual", "options", "said"), ROWS, ids=[row[3] for row in ROWS])
def test_one_stage_explains_a_step(expected, actual, options, said):
    found = explain(expected, actual, **options)
    assert f"{found[0].stage} {found[0].kind}: {found[0].evidence}" == f"{said}; {ALONE}"


@pytest.mark.parametrize(
    ("expected", "actual", "options"),
    [
        # Without origins, any clause may have made it.
        ([FALSE], [TRUE], {**DEAD, "has_origins": False}),
        # The program does not give these lists, or the goal has no atoms.
        ([FALSE], [TRUE], {"goals": ((),)}),
        (PROOFS[:2], PROOFS[2:], ALONE_IN_GOAL),
        (PROOFS[:1], PROOFS[:1], ALONE_IN_GOAL),
    ],
)
def test_what_no_stage_explains_alone_is_not_explained(expected, actual, options):
    assert explain(expected, actual, **options) == []


FROM_RULES = {"goals": (((Q, A, B),),)}
"""Pruning leaves nothing of what two rules give."""


@pytest.mark.parametrize(
    ("expected", "actual", "options", "names"),
    [
        (PROOFS[:1], BESIDE, ALONE_IN_GOAL, ["match_facts missing", "close outcome"]),
        ([rule(2, kind=GoalKind.TRUE)], [FALSE], FROM_RULES, ["match_rules missing", "close missing"]),
        (
            [rule(2, kind=GoalKind.TRUE)],
            [FALSE],
            {**FROM_RULES, "has_origins": False},
            ["match_rules proof_lost", "close proof_lost"],
        ),
        (
            [F0, F1],
            [F1, F2],
            {"dialect": FACTS_FIRST, "dropped": None, "max_resolvents": 2},
            ["limit limit", "match_facts missing", "match_facts reordered"],
        ),
        (ALL, ALL[1:], {"dropped": None, "max_atoms": 3}, ["match_rules missing", "limit limit"]),
    ],
)
def test_several_stages_may_explain_a_step_the_likeliest_first(expected, actual, options, names):
    assert names_of(explain(expected, actual, **options)) == names


def test_an_empty_list_is_rather_that_of_lost_clauses_than_of_an_earlier_dead_end():
    found = names_of(explain(ALL, [FALSE], goals=(((R, A, X),), START)))
    assert (found[0], found[-1]) == ("match_rules missing", "advance stale")


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
