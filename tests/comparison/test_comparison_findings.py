"""Every rule of the classes: the whole finding, its evidence and confidence included, of the smallest case of each."""

from typing import Any

import pytest
from test_comparison_classify import GOAL, OTHER, divergence, resolvent, step

from kgverify.comparison.classify import SCORE_ROUNDING, Finding, Surroundings, classify
from kgverify.comparison.step_view import StepView
from kgverify.program.atoms import Atom
from kgverify.program.outcomes import DifferenceClass

K = DifferenceClass
A, B = resolvent([(0, 3, 4)], 5), resolvent([(0, 4, 4)], 6)
TRUE, FALSE = resolvent([], 7, kind=1), resolvent([], kind=2, origin_kind=0)
RULE = resolvent([(0, 3, 4)], 5, origin_kind=1)
LOOP = (Atom(0, -1, -1),)


def finding(
    stage: str,
    expected: StepView | None = None,
    actual: StepView | None = None,
    outputs: tuple[Any, Any] | None = None,
    field: str = "stage",
    earlier: tuple[StepView, ...] = (),
    goals: frozenset[Any] = frozenset(),
    bound: float = 0.0,
    draw: str = "",
) -> Finding:
    around = Surroundings(expected, actual, outputs, earlier, goals, bound, draw)
    return classify(divergence(stage, field), around)


def test_ranks_and_whole_candidates_have_findings_of_their_own():
    same = "every step agrees; the summary of the candidate does not"
    again = "the expected side ranks the same candidates differently"
    assert finding("rank", field="rankings") == Finding(K.RANK, again, 1.0)
    assert finding("recycle", field="candidates.outcome") == Finding(K.OUTCOME, same, 0.9)
    unknown = "the steps of a side are unknown: any stage may be at fault"
    assert finding("finish", field="candidates.outcome") == Finding(K.OUTCOME, unknown, 0.1)
    assert finding("recycle", field="candidates.is_limited") == Finding(K.OUTCOME, same, 0.9)
    assert finding("limit", field="candidates.is_limited") == Finding(K.NUMBER, same, 0.9)
    assert finding("advance", field="candidates.log_probability") == Finding(K.NUMBER, same, 0.9)


def test_candidates_of_another_draw_are_substituted_others_missing_or_extra():
    drawn = finding("corrupt", field="candidates.atom", draw="2 drawn instead of 2 others")
    assert drawn == Finding(K.SUBSTITUTED, "2 drawn instead of 2 others", 1.0)
    around = Surroundings(None, None, None, (), frozenset(), 0.0)
    extra = classify(divergence("corrupt", "candidates.atom", "no such candidate", "p(a, b)"), around)
    assert extra == Finding(K.EXTRA, "the expected side does not have this candidate", 1.0)
    missing = classify(divergence("corrupt", "candidates.atom", "p(a, b)", "no such candidate"), around)
    assert missing == Finding(K.MISSING, "the actual side does not have this candidate", 1.0)


def test_a_derivation_stops_or_goes_on():
    stops = Finding(K.MISSING, "the derivation stops while it is OPEN", 1.0)
    goes_on = Finding(K.EXTRA, "the derivation continues after its end", 1.0)
    assert finding("recycle", step(A), None, field="candidates.num_steps") == stops
    assert finding("recycle", None, step(A), field="candidates.num_steps") == goes_on
    assert finding("recycle", None, None, field="candidates.num_steps") == goes_on
    assert finding("recycle", step(A), step(A), field="candidates.num_steps") == goes_on


def test_without_both_steps_nothing_is_classified():
    unknown = Finding(K.UNCLASSIFIED, "one side has no such step", 0.0)
    assert finding("resolve", step(A), None) == finding("resolve", None, step(A)) == unknown
    assert finding("corrupt", step(A), step(B)) == Finding(K.UNCLASSIFIED, "no rule for stage corrupt", 0.0)


def test_stale_resolvents_are_counted_back_from_the_step():
    earlier = (step(A, B, goal=OTHER), step(B, goal=OTHER), step(A, goal=OTHER))
    stale = finding("resolve", step(B), step(A, B), earlier=earlier)
    assert stale == Finding(K.STALE, "the resolvents are those of the step 3 before this one", 0.95)
    assert (
        finding("score", step(B), step(A), earlier=earlier).evidence
        == "the resolvents are those of the step 1 before this one"
    )
    # The step's own resolvents, those of another goal, and TRUE alone tell nothing; nor do those that `limit` kept.
    assert finding("score", step(A, B), step(A, B), ((0.0,), (1.0,)), earlier=earlier).kind is K.NUMBER
    assert finding("resolve", step(B), step(A, B, goal=OTHER), earlier=earlier).kind is not K.STALE
    before_true = (step(TRUE, goal=OTHER),)
    assert finding("match_facts", step(B), step(TRUE), earlier=before_true).kind is K.SUBSTITUTED
    assert finding("limit", step(B), step(A, B), earlier=earlier).kind is K.LIMIT
    assert finding("match_facts", step(B), step(), earlier=(step(goal=OTHER),)).kind is K.MISSING
    assert finding("resolve", step(B), step(A, B), earlier=(step(A, B),)).kind is not K.STALE


@pytest.mark.parametrize(("stage", "what"), [("match_rules", "rule"), ("match_facts", "fact")])
def test_matches_are_counted(stage: str, what: str):
    assert finding(stage, step(A), step(A), ((1, 2, 3), (3,))) == Finding(
        K.MISSING, f"2 {what}s missing, none extra", 1.0
    )
    assert finding(stage, step(A), step(A), ((3,), (1, 1, 3))) == Finding(
        K.EXTRA, f"2 {what}s extra, none missing", 1.0
    )
    both = Finding(K.SUBSTITUTED, f"1 {what} missing, 2 extra", 0.7)
    assert finding(stage, step(A), step(A), ((1, 3), (4, 5, 3))) == both
    assert finding(stage, step(A), step(A), ((1, 2), (2, 1))) == Finding(
        K.REORDERED, f"the same {what}s in a different order", 1.0
    )


def test_matches_without_a_replay_are_of_the_stage_s_own_clauses():
    expected, actual = step(RULE, A), step(A, B)
    assert finding("match_rules", expected, actual) == Finding(K.MISSING, "1 rule missing, none extra", 1.0)
    assert finding("match_facts", expected, actual) == Finding(K.EXTRA, "1 fact extra, none missing", 1.0)


def test_a_selected_atom_with_one_variable_twice_is_a_situation():
    told = "a repeated variable is selected"
    for outputs in (((1,), ()), ((), (1,)), ((1,), (2,))):
        loop = finding("match_facts", step(A, goal=LOOP), step(A, goal=LOOP), outputs)
        assert loop.situation == told
        for atom in (Atom(0, -1, -2), Atom(0, 3, 3), Atom(0, 3, -1), Atom(0, -1, 3)):
            goal = (atom, *LOOP)
            assert finding("match_facts", step(A, goal=goal), step(A, goal=goal), outputs).situation == ""
    assert finding("match_facts", step(A, goal=()), step(A, goal=()), ((1,), ())).situation == ""


def items(
    *each: tuple[int, tuple[tuple[int, int, int], ...]],
) -> tuple[tuple[int, int, tuple[tuple[int, int, int], ...]], ...]:
    """Facts' resolvents as a replay has them."""
    return tuple((2, origin, atoms) for origin, atoms in each)


ONE, TWO, THREE = ((0, 3, 4),), ((0, 3, 4), (0, 4, 4)), ((0, 3, 4), (0, 4, 4), (0, 5, 5))


def test_resolvents_of_one_clause_that_differ():
    def of(stage: str, expected: Any, actual: Any) -> Finding:
        return finding(stage, step(A), step(A), (items((5, expected)), items((5, actual))))

    other = Finding(K.SUBSTITUTED, "the same clause gave different atoms", 0.95)
    assert of("resolve", ONE, ((0, 7, 4),)) == other
    assert of("resolve", ONE, TWO) == other
    assert of("prune", ONE, ((0, 7, 4),)) == other
    assert of("prune", THREE, ONE) == Finding(K.MISSING, "2 atoms missing after pruning", 0.95)
    assert of("prune", ONE, THREE) == Finding(K.EXTRA, "2 atoms extra after pruning", 0.95)
    pad = -(2**31)
    padded = (*ONE, (pad, pad, pad))
    assert of("prune", ONE, padded) == Finding(K.EXTRA, "1 atom extra after pruning", 0.95)
    assert of("prune", TWO, padded) == Finding(K.MISSING, "1 atom missing after pruning", 0.95)
    renamed = Finding(K.RENAMED, "the same clause gave the same atoms with different variables", 1.0)
    assert of("rename", ((0, -1, 4),), ((0, -3, 4),)) == renamed
    assert of("rename", ((0, -1, -1),), ((0, -1, -2),)) == other
    # With several clauses the first one tells.
    first = finding(
        "resolve", step(A), step(A), (items((5, ((0, -1, 4),)), (6, ONE)), items((5, ((0, -2, 4),)), (6, TWO)))
    )
    assert first == renamed


def test_resolvents_of_other_clauses_are_counted():
    def of(stage: str, expected: Any, actual: Any) -> Finding:
        return finding(stage, step(A), step(A), (items(*expected), items(*actual)))

    both = (5, ONE), (6, TWO)
    assert of("revisit", both, both[::-1]) == Finding(K.REORDERED, "the same resolvents in a different order", 1.0)
    assert of("revisit", (*both, (7, ONE)), both[:1]) == Finding(K.MISSING, "2 resolvents missing", 0.95)
    assert of("revisit", both[:1], (*both, (7, ONE))) == Finding(K.EXTRA, "2 resolvents extra", 0.95)
    assert of("revisit", both, ((7, ONE),)) == Finding(K.SUBSTITUTED, "2 resolvents missing, 1 extra", 0.6)
    # Rule 5 is not fact 5.
    outputs = ((1, 5, ONE),), ((2, 5, TWO),)
    assert finding("revisit", step(A), step(A), outputs).evidence == "1 resolvent missing, 1 extra"


def test_resolvents_without_a_replay_are_read_off_the_steps():
    assert finding("revisit", step(A, B), step(B)) == Finding(K.MISSING, "1 resolvent missing", 0.95)
    other = resolvent([(0, 8, 4)], 5)
    assert finding("resolve", step(A), step(other)) == Finding(
        K.SUBSTITUTED, "the same clause gave different atoms", 0.95
    )
    more = resolvent([(0, 3, 4), (0, 8, 8)], 5)
    assert finding("prune", step(A), step(more)) == Finding(K.EXTRA, "1 atom extra after pruning", 0.95)


def test_a_goal_closed_differently_says_whether_a_proof_is_lost_or_false():
    lost, false = "a proof is lost", "a false proof"
    same = "the same clause closes the goal differently"
    open_ = resolvent([(0, 3, 4)], 7)
    assert finding("close", step(TRUE), step(open_)) == Finding(K.OUTCOME, same, 0.9, lost)
    assert finding("close", step(open_), step(TRUE)) == Finding(K.OUTCOME, same, 0.9, false)
    assert finding("close", step(TRUE), step(A)) == Finding(K.OUTCOME, "the goal is closed differently", 0.9, lost)
    assert finding("close", step(A), step(TRUE)) == Finding(K.OUTCOME, "the goal is closed differently", 0.9, false)
    assert finding("close", step(A), step(FALSE)) == Finding(K.OUTCOME, "the goal is closed differently", 0.9, "")
    assert finding("close", step(TRUE, A), step(A)) == Finding(K.MISSING, "1 resolvent missing", 0.95, lost)
    assert finding("close", step(A), step(TRUE, A)) == Finding(K.EXTRA, "1 resolvent extra", 0.95, false)
    assert finding("close", step(TRUE), step(TRUE, A)) == Finding(K.EXTRA, "1 resolvent extra", 0.95, "")
    closed = ((1, 2, 7, ()),), ((0, 2, 5, ONE),)
    assert finding("close", step(A), step(A), closed) == Finding(K.OUTCOME, "the goal is closed differently", 0.9, lost)
    assert finding("close", step(A), step(A), closed[::-1]).situation == false


def test_limits_tell_what_they_dropped():
    kept = (0, 2, 5, ONE), (0, 2, 6, TWO)
    counts = "dropped (by max_atoms, by max_resolvents): expected (1, 2), actual (0, 3)"
    assert finding("limit", step(A, dropped=(1, 2)), step(A, dropped=(0, 3))) == Finding(K.LIMIT, counts, 0.95)
    assert finding("limit", step(A), step(A), ((kept, 1, 2), (kept, 0, 3))) == Finding(K.LIMIT, counts, 0.95)
    order = Finding(K.REORDERED, "the same resolvents are kept, in a different order", 1.0)
    assert finding("limit", step(A), step(A), ((kept, 1, 2), (kept[::-1], 1, 2))) == order
    assert finding("limit", step(A), step(A), ((kept, 1, 2), (kept[::-1], 1, 3))).kind is K.LIMIT
    assert finding("limit", step(A), step(A), ((kept, 1, 2), (kept[:1], 1, 2))).kind is K.LIMIT
    proved = ((1, 2, 7, ()),)
    lost = finding("limit", step(A), step(A), ((proved, 0, 0), (kept, 0, 0)))
    assert (lost.kind, lost.situation) == (K.LIMIT, "a proof is lost")
    assert finding("limit", step(A), step(TRUE)).situation == "a false proof"


def test_scores_are_judged_by_the_worst_relative_to_their_size():
    def of(*pairs: tuple[float, float]) -> Finding:
        return finding("score", step(A), step(A), tuple(zip(*pairs, strict=True)))

    assert of((1.0, 1.0), (0.1, 0.0999755859375)) == Finding(
        K.ROUNDING,
        "scores differ by at most 2.4e-04, relative: the actual scores have no more bits than fp16 numbers",
        0.9,
    )
    small = of((1.0, 1.0), (1.0, 1.0 + SCORE_ROUNDING))
    assert (small.kind, small.confidence) == (K.NUMBER, 0.6)
    assert small.evidence.startswith("scores differ by at most 1.5e-02, relative: as much as a coarser float type or ")
    assert of((0.5, 0.52)) == Finding(K.NUMBER, "scores differ by up to 3.8e-02, relative", 0.9)
    assert of((200.0, 202.0)).evidence.startswith("scores differ by at most 9.9e-03, relative: as much as ")
    assert of((-202.0, -200.0)).evidence.startswith("scores differ by at most 9.9e-03, relative: as much as ")
    assert of((1.0, 1.0), (100.0, 50.0)) == Finding(K.NUMBER, "scores differ by up to 5.0e-01, relative", 0.9)
    assert of((1.0, 5.0), (1.0, float("nan"))) == Finding(K.NUMBER, "a score is NaN", 1.0, "NaN")
    expected, actual = step(resolvent([(0, 3, 4)], 5, 1.0)), step(resolvent([(0, 3, 4)], 5, 3.0))
    assert finding("score", expected, actual) == Finding(K.NUMBER, "scores differ by up to 6.7e-01, relative", 0.9)


def scored(*scores: float, choice: int = 0) -> StepView:
    return step(*(resolvent([(0, i, 4)], i, score) for i, score in enumerate(scores)), choice=choice)


def test_choices_are_judged_by_the_gap_of_their_scores():
    tie = Finding(K.TIE, "the two choices have equal scores", 1.0)
    assert finding("choose", scored(2.0, 2.0, 1.0), scored(2.0, 2.0, 1.0, choice=1)) == tie
    # Equal for the actual side alone.
    assert finding("choose", scored(2.0, 1.0), scored(1.0, 1.0, choice=1), bound=0.5) == tie
    inside = finding("choose", scored(2.0, 1.5), scored(2.0, 1.5, choice=1), bound=0.5)
    assert inside == Finding(K.ROUNDING, "the gap of the scores, 5.00e-01, is inside the error bound", 1.0)
    outside = finding("choose", scored(2.0, 1.5), scored(2.0, 1.5, choice=1), bound=0.25)
    assert outside == Finding(K.NUMBER, "the chosen resolvent scores 0.5 below the highest", 0.8)
    first = finding("choose", scored(2.0, 4.0, choice=1), scored(2.0, 4.0))
    assert first == Finding(K.NUMBER, "the chosen resolvent scores 2 below the highest", 0.8)
    none = Finding(K.NUMBER, "the choice is not the index of a resolvent", 0.9)
    for choice in (-1, 2):
        assert finding("choose", scored(2.0, 1.5), scored(2.0, 1.5, choice=choice)) == none
        assert finding("choose", scored(2.0, 1.5, choice=choice), scored(2.0, 1.5)) == none


def test_goals_are_stale_foreign_renamed_or_others():
    other = step(A, goal=OTHER)
    stale = Finding(K.STALE, "the goal is that of an earlier step", 0.95)
    foreign = Finding(K.FOREIGN, "the goal is that of another derivation", 0.95)
    for stage in ("advance", "recycle", "select"):
        assert finding(stage, step(A), other, earlier=(step(A), step(B, goal=OTHER))) == stale
        assert finding(stage, step(A), other, goals=frozenset({OTHER})) == foreign
        assert finding(stage, step(A), other, earlier=(step(A),), goals=frozenset({GOAL})) == Finding(
            K.SUBSTITUTED, "the goal is not the chosen resolvent", 0.8
        )
    renamed = step(A, goal=(Atom(0, 1, -3),))
    assert finding("advance", step(A), renamed) == Finding(K.RENAMED, "the goal has different variables", 0.95)
    assert finding("advance", step(A), step(A, depth=4)) == Finding(K.STALE, "depth 4, expected 1", 0.9)
    assert finding("recycle", step(A), step(A)) == Finding(
        K.FOREIGN, "the step run alone gives the expected output: it depends on other slots", 0.8
    )


def test_another_outcome_of_the_same_choice_is_that():
    same = Finding(K.OUTCOME, "the same resolvent was chosen, with a different outcome", 1.0)
    assert finding("finish", step(A), step(A, outcome=1)) == same
