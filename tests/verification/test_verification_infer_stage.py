"""The stage inferred from single steps, given as the outputs of the stages and the answers to further questions."""

import pytest

from kgverify.program.limits import Limits
from kgverify.program.outcomes import GoalKind, Origin
from kgverify.program.stages import Stage
from kgverify.verification.infer_stage import Asked, KnownFact, StepInference, _goal

FACT, RULE = int(Origin.FACT), int(Origin.RULE)
X, Y = -1, -2
GOAL = ((0, 1, X), (1, X, 2))
LEFT = ((1, 3, 2),)
FALSE = (int(GoalKind.FALSE), 0, 0, ())


def goal(kind, clause, *atoms):
    return int(GoalKind.GOAL), kind, clause, tuple(atoms)


def true(kind, clause):
    return int(GoalKind.TRUE), kind, clause, ()


def infer(
    resolved,
    wanted,
    got,
    *,
    visited=(),
    counts=(0, 0),
    own=(0, 0),
    finds=(),
    again=(),
    goals=(GOAL,),
    pruned=None,
    resolved_again=None,
    fact=None,
    **limits,
):
    """Infer the stage of a step whose clauses resolve and prune to some atoms; the actual engine finds `finds` if asked.

    again:          what it finds from the same goal alone; None for nothing, whatever it finds elsewhere
    resolved_again: what the expected engine makes if asked, where `finds` has the atoms of the actual one
    """
    made = [(kind, clause, atoms) for (kind, clause), atoms in resolved.items()]
    rest = [(kind, clause, (pruned or {}).get((kind, clause), atoms)) for kind, clause, atoms in made]
    expected = {
        Stage.MATCH_RULES: tuple(clause for kind, clause, _ in made if kind == RULE),
        Stage.MATCH_FACTS: tuple(clause for kind, clause, _ in made if kind == FACT),
        Stage.RESOLVE: made,
        Stage.PRUNE: rest,
        Stage.RENAME: rest,
        Stage.REVISIT: [each for each in rest if each[:2] not in visited],
        Stage.LIMIT: (tuple(wanted), *counts),
    }

    seen = set()

    def ask(asked_goals):
        assert len(asked_goals) == len(goals), "an engine may be wrong from some depth on"
        assert asked_goals not in seen, "the answer is known"
        seen.add(asked_goals)
        if isinstance(finds, dict):
            found = {} if again is None and list(asked_goals) == [goals[-1]] * len(goals) else finds
            return Asked(
                *(
                    {clause: _goal(atoms) for clause, atoms in side.items()}
                    for side in (resolved_again or resolved, found)
                )
            )
        found = again if list(asked_goals) == [GOAL] * len(goals) else finds
        return Asked(resolved, {clause: resolved.get(clause, LEFT) for clause in found})

    actual = {Stage.LIMIT: (tuple(got), *own)}
    return StepInference(expected, actual, Limits(**limits), 0.0, goals, ask, fact).find()


def test_a_dead_end_that_is_left_open_is_a_fault_of_close():
    assert infer({}, [FALSE], []) is Stage.CLOSE
    assert infer({(RULE, 0): GOAL}, [FALSE], [], visited=[(RULE, 0)]) is Stage.CLOSE


def test_a_drop_from_a_list_with_room_is_a_fault_of_close_or_limit():
    kept = [goal(RULE, 0, *GOAL)]
    assert infer({(RULE, 0): GOAL}, kept, kept, own=(0, 1)) is Stage.LIMIT
    long = ((0, 1, X), (0, X, Y), (1, Y, 2))
    assert infer({(RULE, 0): long}, [FALSE], [FALSE], counts=(1, 0), own=(1, 1), max_atoms=2) is Stage.CLOSE


def test_one_lost_resolvent_as_long_as_the_limit_allows_is_a_fault_of_limit():
    given = {"resolved": {(RULE, 0): GOAL}, "wanted": [goal(RULE, 0, *GOAL)], "got": [FALSE], "finds": [(RULE, 0)]}
    assert infer(**given, max_atoms=2) is Stage.LIMIT
    assert infer(**given, max_atoms=2, again=[(RULE, 0)]) is Stage.REVISIT
    assert infer(**given, max_atoms=3) is Stage.REVISIT


def test_a_drop_that_is_not_counted_is_a_fault_of_limit_unless_the_engine_loses_the_clause_elsewhere():
    kept = [goal(FACT, 0, *LEFT)]
    given = {"resolved": {(FACT, 0): LEFT, (FACT, 1): ((1, 4, 2),)}, "wanted": kept, "got": kept, "counts": (0, 1)}
    assert infer(**given, max_resolvents=1, finds=[(FACT, 1)]) is Stage.LIMIT
    assert infer(**given, max_resolvents=1) is Stage.MATCH_FACTS
    # No longer goal can be asked for.
    assert infer(**given, max_resolvents=1, max_atoms=1) is Stage.LIMIT


def test_a_resolvent_cut_at_the_limit_is_a_fault_of_limit():
    long = ((0, 1, X), (0, X, Y), (1, Y, 2))
    cut = [goal(RULE, 0, *long[:2])]
    assert infer({(RULE, 0): long}, [FALSE], cut, counts=(1, 0), max_atoms=2) is Stage.LIMIT
    assert infer({(RULE, 0): long}, [goal(RULE, 0, *long)], cut, max_atoms=3) is Stage.RESOLVE


@pytest.mark.parametrize(
    ("found", "stage"),
    [
        (((0, 1, X), (1, 2, 3), (0, Y, Y)), Stage.LIMIT),
        (((0, 1, X), (1, 2, 3)), Stage.RESOLVE),
        (((0, 1, X), (0, Y, Y)), Stage.PRUNE),
        (((0, 1, Y), (1, 2, 3), (0, X, X)), Stage.RENAME),
        (None, Stage.LIMIT),
    ],
)
def test_atoms_that_change_within_the_limits_are_no_fault_of_limit(found: tuple | None, stage: Stage):
    rule, whole = (RULE, 0), ((0, 1, X), (1, 2, 3), (0, Y, Y))
    answers = {"resolved_again": {rule: whole}, "finds": {} if found is None else {rule: found}}
    long = ((0, 1, X), (1, X, Y), (1, Y, 2), (2, Y, 1))
    goals = [((0, 1, X), (1, X, 2), (2, X, 1))]
    given = {"resolved": {rule: long}, "goals": goals, "max_atoms": 3, **answers}
    # It is cut at the limit; or neither listed nor counted, and dropped all the same.
    assert infer(**given, wanted=[FALSE], got=[goal(*rule, *long[:3])], counts=(1, 0)) is stage
    assert infer(**given, wanted=[FALSE], got=[FALSE], counts=(1, 0)) is (stage if found else Stage.MATCH_RULES)
    given |= {"resolved": {rule: long[:3]}, "goals": [goals[0][:2]]}
    # The step, which may keep a resolvent as long as this one, has lost it.
    lost = infer(**given, wanted=[goal(*rule, *long[:3])], got=[FALSE], again=None)
    assert lost is (stage if found else Stage.MATCH_RULES)


@pytest.mark.parametrize("max_atoms", [4, 5])
def test_a_variable_that_goes_wrong_behind_a_fact_as_well_is_a_fault_of_rename(max_atoms: int):
    rule, fact = (RULE, 0), KnownFact((FACT, 7), (3, 1, 1))
    atoms, other = ((0, 1, X), (0, X, Y), (1, Y, 1), (1, 2, 2)), ((0, 1, X), (0, X, 0), (1, 0, 1), (1, 2, 2))

    def infer_from(found, **given):
        answers = {"resolved_again": {fact.clause: atoms[:3]}, "finds": {fact.clause: found}}
        wanted, got = [goal(*rule, *atoms)], [goal(*rule, *other)]
        return infer({rule: atoms}, wanted, got, max_atoms=max_atoms, **answers, **given)

    assert infer_from(other[:3], fact=fact) is Stage.RENAME
    for found in (atoms[:3], other[:2], ((0, 2, X), *other[1:3])):
        assert infer_from(found, fact=fact) is Stage.RESOLVE
    assert infer_from(other[:3]) is Stage.RESOLVE


def test_a_resolvent_of_no_clause_is_a_fault_of_limit_and_one_of_another_clause_of_matching():
    wanted = [goal(FACT, 0, *LEFT), goal(FACT, 1, *GOAL)]
    for gap, stage in ((goal(0, 0, *GOAL), Stage.LIMIT), (goal(FACT, 2, *GOAL), Stage.MATCH_FACTS)):
        assert infer({(FACT, 0): LEFT, (FACT, 1): GOAL}, wanted, [wanted[0], gap]) is stage


def test_a_proof_of_no_clause_is_a_fault_of_close():
    assert infer({(FACT, 0): LEFT}, [goal(FACT, 0, *LEFT)], [true(0, 0)]) is Stage.CLOSE
    assert infer({}, [FALSE], [true(0, 0)]) is Stage.CLOSE


def test_variables_that_are_not_numbered_by_appearance_are_a_fault_of_rename():
    atoms = ((0, X, Y), (1, Y, 1), (2, X, -3), (3, -3, -4))
    collided = ((0, X, -3), (1, -3, 1), (2, X, Y), (3, Y, -3))
    fresh = ((0, X, Y), (1, Y, 1), (2, X, Y), (3, Y, -3))
    for other, stage in ((collided, Stage.RENAME), (fresh, Stage.RESOLVE)):
        assert infer({(RULE, 0): atoms}, [goal(RULE, 0, *atoms)], [goal(RULE, 0, *other)], goals=[GOAL]) is stage


def test_resolvents_with_the_clauses_of_others_are_a_fault_of_limit():
    other = ((1, 4, 2),)
    resolved = {(FACT, 0): LEFT, (FACT, 300): other}
    wanted = [goal(FACT, 0, *LEFT), goal(FACT, 300, *other)]
    assert infer(resolved, wanted, [goal(FACT, 0, *LEFT), goal(FACT, 0, *other)]) is Stage.LIMIT
    # Facts may leave the same atoms.
    alike = [goal(FACT, 0, *LEFT), goal(FACT, 1, *LEFT)]
    assert infer({(FACT, 0): LEFT, (FACT, 1): LEFT}, alike, alike[::-1]) is Stage.MATCH_FACTS


@pytest.mark.parametrize(("finds", "stage"), [([(FACT, 4)], Stage.MATCH_FACTS), ([(FACT, 65540)], Stage.CLOSE)])
def test_a_proof_by_another_fact_is_a_fault_of_matching_if_the_engine_finds_that_fact(finds: list, stage: Stage):
    assert infer({(FACT, 65540): ()}, [true(FACT, 65540)], [true(FACT, 4)], goals=[GOAL[:1]], finds=finds) is stage


def test_a_proof_lost_among_the_limits_is_a_fault_of_prune_if_atoms_were_to_be_pruned():
    given = {"resolved": {(FACT, 7): LEFT}, "pruned": {(FACT, 7): ()}, "wanted": [true(FACT, 7)], "goals": [GOAL]}
    assert infer(**given, got=[goal(FACT, 7, *LEFT)]) is Stage.PRUNE
    assert infer(**given, got=[FALSE], finds=[]) is Stage.MATCH_FACTS
    assert infer(**given, got=[FALSE], finds=[(FACT, 7)]) is Stage.CLOSE


def test_facts_in_another_order_make_another_proof():
    first, last = (FACT, 3), (FACT, 9)
    resolved, asked = {first: (), last: ()}, {first: LEFT, last: LEFT}
    given = {"resolved": resolved, "wanted": [true(*first)], "got": [true(*last)], "goals": [GOAL[:1]]}
    turned = {last: LEFT, first: LEFT}
    assert infer(**given, resolved_again=asked, finds=turned) is Stage.MATCH_FACTS
    assert infer(**given, resolved_again=asked, finds=asked) is Stage.CLOSE


def test_a_body_that_is_short_with_variables_as_well_is_a_fault_of_resolve():
    rule, ground, whole = (RULE, 0), ((0, 1, 2), (1, 2, 3)), ((0, X, Y), (1, Y, 3))
    given = {"resolved": {rule: ground}, "wanted": [goal(*rule, *ground)], "got": [goal(*rule, ground[0])]}
    for found, stage in ((whole[:1], Stage.RESOLVE), (whole, Stage.PRUNE)):
        assert infer(**given, resolved_again={rule: whole}, finds={rule: found}) is stage


@pytest.mark.parametrize("depth", [0, 3])
def test_an_engine_is_asked_at_the_depth_of_the_step(depth: int):
    goals = [*[LEFT] * depth, GOAL]
    assert infer({(RULE, 0): GOAL}, [goal(RULE, 0, *GOAL)], [FALSE], goals=goals) is Stage.MATCH_RULES
