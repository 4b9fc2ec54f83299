"""The class of a difference follows from the steps, with evidence."""

import pytest

from kgverify.comparison.classify import Surroundings, classify, group_causes
from kgverify.comparison.result import Divergence, Level
from kgverify.comparison.step_view import ResolventView, StepView
from kgverify.program.atoms import Atom
from kgverify.program.outcomes import DifferenceClass

GOAL = (Atom(0, 1, -1),)
OTHER = (Atom(0, 2, -1),)


def divergence(stage, field="stage", expected="", actual="", candidate=0, later=0):
    return Divergence(
        candidate=candidate,
        atom="",
        query=candidate,
        side="head",
        step=1,
        stage=stage,
        field=field,
        level=Level.CHOICE,
        expected=expected,
        actual=actual,
        later_steps=later,
    )


def resolvent(atoms, origin=0, score=0.0, kind=0, origin_kind=2):
    return ResolventView(kind, tuple(Atom(*a) for a in atoms), origin_kind, origin, score)


def step(*resolvents, goal=GOAL, choice=0, depth=1, outcome=0, dropped=(0, 0)):
    return StepView(depth, goal, resolvents, *dropped, choice, outcome)


def kind_of(stage, expected, actual, outputs=None, earlier=(), goals=frozenset(), bound=0.0, field="stage"):
    return classify(divergence(stage, field), Surroundings(expected, actual, outputs, earlier, goals, bound)).kind


A, B = resolvent([(0, 3, 4)], 5), resolvent([(0, 4, 4)], 6)


@pytest.mark.parametrize(
    ("outputs", "kind"),
    [
        (((1, 2), (1,)), "missing"),
        (((1,), (1, 2)), "extra"),
        (((1, 2), (2, 1)), "reordered"),
        (((1,), (2,)), "substituted"),
    ],
)
def test_matches_are_compared_as_lists_of_clauses(outputs, kind):
    assert kind_of("match_facts", step(A, B), step(A), outputs).value == kind
    assert kind_of("match_rules", step(A, B), step(A), outputs).value == kind


def test_without_a_replay_matches_are_read_off_the_origins():
    false = resolvent([], kind=2, origin_kind=0)
    assert kind_of("match_facts", step(A, B), step(false)) is DifferenceClass.MISSING


def test_the_same_clause_with_other_atoms_is_substituted_and_with_other_variables_renamed():
    def outputs(atoms):
        return ((2, 5, ((0, -1, 4),)),), ((2, 5, atoms),)

    assert kind_of("resolve", step(A), step(A), outputs(((0, 7, 4),))) is DifferenceClass.SUBSTITUTED
    assert kind_of("rename", step(A), step(A), outputs(((0, -2, 4),))) is DifferenceClass.RENAMED
    assert kind_of("prune", step(A), step(A), outputs(((0, -1, 4), (0, 1, 1)))) is DifferenceClass.EXTRA
    assert kind_of("prune", step(A), step(A), outputs(())) is DifferenceClass.MISSING


def test_resolvents_of_an_earlier_step_are_stale():
    before = step(A, B, goal=OTHER)
    assert kind_of("resolve", step(B), step(A, B), earlier=(before,)) is DifferenceClass.STALE


def test_a_goal_of_another_derivation_is_foreign_and_one_of_an_earlier_step_stale():
    expected, actual = step(A), step(A, goal=OTHER)
    assert kind_of("advance", expected, actual, goals=frozenset({OTHER})) is DifferenceClass.FOREIGN
    assert kind_of("advance", expected, actual, earlier=(step(A, goal=OTHER),)) is DifferenceClass.STALE


def test_choices_are_ties_at_equal_scores_and_rounding_inside_the_bound():
    expected = step(resolvent([(0, 3, 4)], 5, 1.0), resolvent([(0, 4, 4)], 6, 1.0))
    assert kind_of("choose", expected, expected._replace(choice=1)) is DifferenceClass.TIE
    near = step(resolvent([(0, 3, 4)], 5, 1.0), resolvent([(0, 4, 4)], 6, 0.99))
    assert kind_of("choose", near, near._replace(choice=1), bound=0.02) is DifferenceClass.ROUNDING
    assert kind_of("choose", near, near._replace(choice=1), bound=0.001) is DifferenceClass.NUMBER


def test_scores_of_a_coarser_float_are_rounding_others_are_not():
    # A float16 number; then a number that float16 does not have, which other weights may have made.
    assert kind_of("score", step(A), step(A), ((1.0002, 2.0), (1.0, 2.0))) is DifferenceClass.ROUNDING
    assert kind_of("score", step(A), step(A), ((1.0, 2.0), (1.001, 2.0))) is DifferenceClass.NUMBER
    assert kind_of("score", step(A), step(A), ((1.0,), (-1.0,))) is DifferenceClass.NUMBER
    assert kind_of("score", step(A), step(A), ((1.0,), (float("nan"),))) is DifferenceClass.NUMBER


def test_limits_outcomes_and_candidates_have_classes_of_their_own():
    assert kind_of("limit", step(A), step(A, dropped=(1, 0))) is DifferenceClass.LIMIT
    assert kind_of("finish", step(A), step(A, outcome=1)) is DifferenceClass.OUTCOME
    nothing = Surroundings(None, None, None, (), frozenset(), 0.0)
    lost = divergence("recycle", "candidates.atom", "p(a, b)", "no such candidate")
    invented = divergence("corrupt", "candidates.atom", "no such candidate", "p(a, b)")
    assert classify(lost, nothing).kind is DifferenceClass.MISSING
    assert classify(invented, nothing).kind is DifferenceClass.EXTRA


def test_divergences_of_one_signature_are_one_cause_the_largest_first():
    members = [divergence("rename", candidate=0)] + [divergence("prune", candidate=i, later=2) for i in (1, 2, 2)]
    around = Surroundings(step(A), step(B), None, (), frozenset(), 0.0)
    findings = tuple(classify(each, around) for each in members)
    numbered, causes = group_causes(tuple(members), findings)
    assert [(c.stage, c.num_candidates, c.num_divergences, c.num_later, c.first) for c in causes] == [
        ("prune", 2, 3, 6, 1),
        ("rename", 1, 1, 0, 0),
    ]
    assert [each.cause for each in numbered] == [1, 0, 0, 0]
    assert all(each.evidence for each in numbered)


def test_causes_of_one_size_are_in_the_order_of_their_first_divergence():
    stages = ("rename", "close", "prune", "close", "prune", "limit")
    members = tuple(divergence(stage, candidate=i) for i, stage in enumerate(stages))
    findings = tuple(classify(each, Surroundings(step(A), step(B), None, (), frozenset(), 0.0)) for each in members)
    numbered, causes = group_causes(members, findings)
    assert [cause.stage for cause in causes] == ["close", "prune", "rename", "limit"]
    assert [each.cause for each in numbered] == [2, 0, 1, 0, 1, 3]
