"""The stage and the class of a difference follow from two steps: the rules, one smallest case each."""

from typing import Any

import msgspec
import pytest
from comparison_traces import small_trace

from kgverify import Divergence
from kgverify.comparison.classify import Surroundings, classify
from kgverify.comparison.locate import locate_difference
from kgverify.comparison.step_view import Names, ResolventView, StepView
from kgverify.program.atoms import Atom

GOAL, OTHER, LOOP = (Atom(0, 1, -1),), (Atom(0, 2, -1),), (Atom(0, -1, -1),)
GONE = "no such candidate"


def resolvent(*atoms: Any, origin: int = 5, score: float = 0.0, kind: int = 0, origin_kind: int = 2) -> ResolventView:
    return ResolventView(kind, tuple(Atom(*each) for each in atoms), origin_kind, origin, score)


def step(*resolvents: Any, goal: Any = GOAL, choice: int = 0, depth: int = 1, outcome: int = 0, dropped: Any = (0, 0)):
    return StepView(depth, goal, resolvents, *dropped, choice, outcome)


def scored(*scores: float, choice: int = 0) -> StepView:
    return step(*(resolvent((0, i, 4), origin=i, score=score) for i, score in enumerate(scores)), choice=choice)


def items(*each: Any) -> Any:
    """Facts' resolvents as a replay has them."""
    return tuple((2, origin, atoms) for origin, atoms in each)


A, B = resolvent((0, 3, 4)), resolvent((0, 4, 4), origin=6)
C, RULE = resolvent((0, 5, 4), origin=0, origin_kind=1), resolvent((0, 3, 4), origin_kind=1)
TRUE, FALSE = resolvent(origin=7, kind=1), resolvent(origin=0, kind=2, origin_kind=0)
ONE, TWO, THREE = ((0, 3, 4),), ((0, 3, 4), (0, 4, 4)), ((0, 3, 4), (0, 4, 4), (0, 5, 5))
NAMED, OF_OTHER = ((0, -1, 4),), step(A, goal=OTHER)
BEFORE = (step(A, B, goal=OTHER), step(B, goal=OTHER), step(A, goal=OTHER))
KEPT, CLOSED = items((5, ONE), (6, TWO)), ((1, 2, 7, ()),)
PAD = (-(2**31),) * 3


def divergence(stage: str, field: str = "stage", expected: Any = "", actual: Any = "", **more: Any) -> Divergence:
    values = {"candidate": 0, "query": 0, **more}
    return Divergence(
        atom="",
        side="head",
        step=1,
        stage=stage,
        field=field,
        level="choice",
        expected=expected,
        actual=actual,
        **values,
    )


def classified(stage: str, expected: Any = None, actual: Any = None, outputs: Any = None, **more: Any) -> Any:
    of_divergence = {name: more.pop(name) for name in ("field", "shown", "replayed") if name in more}
    shown = of_divergence.pop("shown", ("", ""))
    around = Surroundings(expected, actual, outputs, **more)
    found = divergence(stage, of_divergence.get("field", "stage"), *shown)
    return classify(msgspec.structs.replace(found, is_replayed=of_divergence.get("replayed", False)), around)


def of_items(stage: str, expected: Any, actual: Any) -> Any:
    return classified(stage, step(A), step(A), (items(*expected), items(*actual)))


def of_scores(*pairs: tuple[float, float]) -> Any:
    return classified("score", step(A), step(A), tuple(zip(*pairs, strict=True)))


NO_STEP = "one side has no such step"
STALE = "the resolvents are those of the step {} before this one"
DROPPED = "dropped (by max_atoms, by max_resolvents): expected (1, 2), actual (0, 3)"
COARSE = "scores differ by at most 9.9e-03, relative: as little as a coarser float type"


# fmt: off
def test_each_rule_gives_its_class_and_its_evidence():
    findings = [
        (classified("rank", field="rankings"), "rank", "the expected side ranks the same candidates differently"),
        (classified("recycle", field="candidates.outcome"), "outcome", "every step agrees; the summary of the candidate"),
        (classified("finish", field="candidates.outcome"), "outcome", "the steps of a side are unknown: any stage may be"),
        (classified("limit", field="candidates.is_limited"), "number", "every step agrees; the summary of the candidate"),
        (classified("corrupt", field="candidates.atom", draw="2 drawn"), "substituted", "2 drawn"),
        (classified("corrupt", field="candidates.atom", shown=(GONE, "p")), "extra", "the expected side does not have this"),
        (classified("corrupt", field="candidates.atom", shown=("p", GONE)), "missing", "the actual side does not have this"),
        (classified("recycle", step(A), field="candidates.num_steps"), "missing", "the derivation stops while it is OPEN"),
        (classified("recycle", None, step(A), field="candidates.num_steps"), "extra", "the derivation continues after its"),
        (classified("resolve", step(A), None), "unclassified", NO_STEP),
        (classified("resolve", None, step(A)), "unclassified", NO_STEP),
        # Stale resolvents are counted back from the step; its own, those of its goal, TRUE alone and the kept ones tell nothing.
        (classified("resolve", step(B), step(A, B), earlier=BEFORE), "stale", STALE.format(3)),
        (classified("score", step(B), step(A), earlier=BEFORE), "stale", STALE.format(1)),
        (classified("score", step(A, B), step(A, B), ((0.0,), (1.0,)), earlier=BEFORE), "number", ""),
        (classified("resolve", step(B), step(A, B, goal=OTHER), earlier=BEFORE), "extra", ""),
        (classified("resolve", step(B), step(A, B), earlier=(step(A, B),)), "extra", ""),
        (classified("match_facts", step(B), step(TRUE), earlier=(step(TRUE, goal=OTHER),)), "substituted", ""),
        (classified("match_facts", step(B), step(), earlier=(step(goal=OTHER),)), "missing", ""),
        (classified("limit", step(B), step(A, B), earlier=BEFORE), "limit", ""),
        # Clauses that matched.
        (classified("match_facts", step(A), step(A), ((1, 2, 3), (3,))), "missing", "2 facts missing, none extra"),
        (classified("match_rules", step(A), step(A), ((3,), (1, 1, 3))), "extra", "2 rules extra, none missing"),
        (classified("match_facts", step(A), step(A), ((1, 3), (4, 5, 3))), "substituted", "1 fact missing, 2 extra"),
        (classified("match_rules", step(A), step(A), ((1, 2), (2, 1))), "reordered", "the same rules in a different order"),
        (classified("match_rules", step(RULE, A), step(A, B)), "missing", "1 rule missing, none extra"),
        (classified("match_facts", step(RULE, A), step(A, B)), "extra", "1 fact extra, none missing"),
        (classified("match_facts", step(A, B), step(FALSE)), "missing", "2 facts missing"),
        # Resolvents of one clause, then of several.
        (of_items("resolve", [(5, ONE)], [(5, ((0, 7, 4),))]), "substituted", "the same clause gave different atoms"),
        (of_items("resolve", [(5, ONE)], [(5, TWO)]), "substituted", "the same clause gave different atoms"),
        (of_items("prune", [(5, ONE)], [(5, ((0, 7, 4),))]), "substituted", "the same clause gave different atoms"),
        (of_items("prune", [(5, THREE)], [(5, ONE)]), "missing", "2 atoms missing after pruning"),
        (of_items("prune", [(5, ONE)], [(5, THREE)]), "extra", "2 atoms extra after pruning"),
        (of_items("prune", [(5, ONE)], [(5, (*ONE, PAD))]), "extra", "1 atom extra after pruning"),
        (of_items("prune", [(5, TWO)], [(5, (*ONE, PAD))]), "missing", "1 atom missing after pruning"),
        (of_items("rename", [(5, NAMED)], [(5, ((0, -3, 4),))]), "renamed", "the same clause gave the same atoms with"),
        (of_items("rename", [(5, ((0, -1, -1),))], [(5, ((0, -1, -2),))]), "substituted", "the same clause gave different"),
        (of_items("resolve", [(5, NAMED), (6, ONE)], [(5, ((0, -2, 4),)), (6, TWO)]), "renamed", ""),
        (of_items("revisit", [(5, ONE), (6, TWO)], [(6, TWO), (5, ONE)]), "reordered", "the same resolvents in a different"),
        (of_items("revisit", [(5, ONE), (6, TWO), (7, ONE)], [(5, ONE)]), "missing", "2 resolvents missing"),
        (of_items("revisit", [(5, ONE)], [(5, ONE), (6, TWO)]), "extra", "1 resolvent extra"),
        (of_items("revisit", [(5, ONE), (6, TWO)], [(7, ONE)]), "substituted", "2 resolvents missing, 1 extra"),
        # Rule 5 is not fact 5.
        (classified("revisit", step(A), step(A), (((1, 5, ONE),), ((2, 5, TWO),))), "substituted", "1 resolvent missing, 1"),
        (classified("revisit", step(A, B), step(B)), "missing", "1 resolvent missing"),
        (classified("resolve", step(A), step(resolvent((0, 8, 4)))), "substituted", "the same clause gave different atoms"),
        (classified("prune", step(A), step(resolvent((0, 3, 4), (0, 8, 8)))), "extra", "1 atom extra after pruning"),
        (classified("close", step(A), step(FALSE)), "outcome", "the goal is closed differently"),
        (classified("close", step(TRUE), step(TRUE, A)), "extra", "1 resolvent extra"),
        # Limits.
        (classified("limit", step(A, dropped=(1, 2)), step(A, dropped=(0, 3))), "limit", DROPPED),
        (classified("limit", step(A), step(A), ((KEPT, 1, 2), (KEPT, 0, 3))), "limit", DROPPED),
        (classified("limit", step(A), step(A), ((KEPT, 1, 2), (KEPT[::-1], 1, 2))), "reordered", "the same resolvents are"),
        (classified("limit", step(A), step(A), ((KEPT, 1, 2), (KEPT[::-1], 1, 3))), "limit", ""),
        (classified("limit", step(A), step(A), ((KEPT, 1, 2), (KEPT[:1], 1, 2))), "limit", ""),
        # Scores are judged by the worst, relative to its size.
        (of_scores((1.0, 1.0), (0.1, 0.0999755859375)), "rounding", "scores differ by at most 2.4e-04, relative: the actual"),
        (of_scores((1.0, 2.0), (1.001, 2.0)), "number", ""),
        (of_scores((200.0, 202.0)), "number", COARSE),
        (of_scores((-202.0, -200.0)), "number", COARSE),
        (of_scores((0.5, 0.52)), "number", "scores differ by up to 3.8e-02, relative"),
        (of_scores((1.0, 1.0), (100.0, 50.0)), "number", "scores differ by up to 5.0e-01, relative"),
        (of_scores((1.0, 5.0), (1.0, float("nan"))), "number", "a score is NaN"),
        (classified("score", scored(1.0), scored(3.0)), "number", "scores differ by up to 6.7e-01, relative"),
        # Choices are judged by the gap of their scores.
        (classified("choose", scored(2, 2, 1), scored(2, 2, 1, choice=1)), "tie", "the two choices have equal scores"),
        (classified("choose", scored(2, 1), scored(1, 1, choice=1), error_bound=0.5), "tie", "the two choices have equal"),
        (classified("choose", scored(2, 1.5), scored(2, 1.5, choice=1), error_bound=0.5), "rounding", "the gap of the scores, 5"),
        (classified("choose", scored(2, 1.5), scored(2, 1.5, choice=1), error_bound=0.25), "number", "the chosen res"),
        (classified("choose", scored(2, 4, choice=1), scored(2, 4)), "number", "the chosen resolvent scores 2 below the highest"),
        (classified("choose", scored(2, 1.5), scored(2, 1.5, choice=-1)), "number", "the choice is not the index of a"),
        (classified("choose", scored(2, 1.5, choice=2), scored(2, 1.5)), "number", "the choice is not the index of a"),
        # Goals, depths and outcomes.
        (classified("advance", step(A), OF_OTHER, earlier=BEFORE), "stale", "the goal is that of an earlier step"),
        (classified("recycle", step(A), OF_OTHER, other_goals=frozenset({OTHER})), "foreign", "the goal is that of another"),
        (classified("select", step(A), OF_OTHER, other_goals=frozenset({GOAL})), "substituted", "the goal is not the chosen"),
        (classified("advance", step(A), step(A, goal=(Atom(0, 1, -3),))), "renamed", "the goal has different variables"),
        (classified("advance", step(A), step(A, depth=4)), "stale", "depth 4, expected 1"),
        (classified("recycle", step(A), step(A)), "foreign", "the recorded outputs of the stages agree, and the step"),
        (classified("recycle", step(A), step(A), replayed=True), "foreign", "the step run alone gives the expected output"),
        (classified("finish", step(A), step(A, outcome=1)), "outcome", "the same resolvent was chosen, with a different"),
    ]
    for number, (finding, kind, evidence) in enumerate(findings):
        assert (finding.kind, finding.evidence.startswith(evidence)) == (kind, True), (number, finding)
        assert (finding.confidence > 0) is (kind != "unclassified"), (number, finding)


def test_a_situation_is_stated_with_the_class():
    findings = [
        ("a proof is lost", classified("close", step(TRUE), step(A))),
        ("a proof is lost", classified("close", step(TRUE, A), step(A))),
        ("a proof is lost", classified("close", step(A), step(A), (CLOSED, items((5, ONE))))),
        ("a proof is lost", classified("limit", step(A), step(A), ((CLOSED, 0, 0), (KEPT, 0, 0)))),
        ("a false proof", classified("close", step(resolvent((0, 3, 4), origin=7)), step(TRUE))),
        ("a false proof", classified("close", step(A), step(TRUE, A))),
        ("a false proof", classified("limit", step(A), step(TRUE))),
        ("", classified("close", step(A), step(FALSE))),
        ("", classified("close", step(TRUE), step(TRUE, A))),
        ("NaN", of_scores((1.0, float("nan")))),
        ("a repeated variable is selected", classified("match_facts", step(A, goal=LOOP), step(A, goal=LOOP), ((1,), ()))),
        ("", classified("match_facts", step(A, goal=GOAL + LOOP), step(A, goal=GOAL + LOOP), ((1,), ()))),
        ("", classified("match_facts", step(A, goal=()), step(A, goal=()), ((1,), ()))),
    ]
    for number, (situation, found) in enumerate(findings):
        assert found.situation == situation, number
# fmt: on


@pytest.mark.parametrize(("is_first", "stage"), [(True, "recycle"), (False, "advance")])
def test_another_goal_is_a_fault_of_the_step_before_or_of_the_slot(is_first: bool, stage: str):
    for actual, field in ((step(A, goal=(*GOAL, *GOAL)), "steps.goal_atoms"), (step(A, depth=2), "steps.depth")):
        found = locate_difference(step(A), actual, Names(small_trace()), is_first, 0.0)
        assert (found.stage, found.field) == (stage, field)


def test_at_most_twelve_items_are_shown():
    many = [resolvent((0, i, 4), origin=i) for i in range(15)]
    for num in (12, 13, 15):
        found = locate_difference(step(B, *many[:num]), step(B), Names(small_trace()), False, 0.0)
        assert len(found.expected) == min(num, 13)
        assert num == 12 or found.expected[12] == f"... and {num - 12} more"
