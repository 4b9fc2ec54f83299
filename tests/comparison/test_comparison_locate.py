"""The stage that is read off two steps, for lists of resolvents that differ in one thing."""

from comparison_traces import small_trace
from test_comparison_classify import GOAL, resolvent, step

from kgverify import Stage
from kgverify.comparison.locate import Difference, locate_difference, shorten
from kgverify.comparison.step_view import Names, StepView

A, B, C = resolvent([(0, 3, 4)], 5), resolvent([(0, 4, 4)], 6), resolvent([(0, 5, 4)], 0, origin_kind=1)


def located(expected: StepView, actual: StepView) -> Difference | None:
    return locate_difference(expected, actual, Names(small_trace()), False, 0.0)


def test_at_most_twelve_items_are_shown():
    items = [str(i) for i in range(14)]
    assert shorten(items[:12]) == items[:12]
    assert shorten(items[:13]) == [*items[:12], "... and 1 more"]
    assert shorten(items) == [*items[:12], "... and 2 more"]


def test_a_resolvent_too_few_or_too_many_is_shown_alone():
    names = Names(small_trace())
    fact, rule, nothing = [names.resolvent(B)], [names.resolvent(C)], ["nothing more"]
    assert located(step(A, B), step(A)) == Difference(Stage.MATCH_FACTS, "resolvents.atoms", fact, nothing)
    assert located(step(A), step(A, B)) == Difference(Stage.MATCH_FACTS, "resolvents.atoms", nothing, fact)
    assert located(step(C, A), step(A)) == Difference(Stage.MATCH_RULES, "resolvents.atoms", rule, nothing)
    assert located(step(A), step(C, A)) == Difference(Stage.MATCH_RULES, "resolvents.atoms", nothing, rule)


def test_a_resolvent_listed_twice_is_counted_twice():
    twice, nothing = [Names(small_trace()).resolvent(A)], ["nothing more"]
    assert located(step(A, A, B), step(A, A, B)) is None
    assert located(step(A, A), step(A)) == Difference(Stage.MATCH_FACTS, "resolvents.atoms", twice, nothing)
    assert located(step(A), step(A, A, A)) == Difference(Stage.MATCH_FACTS, "resolvents.atoms", nothing, twice * 2)


def test_what_stands_for_a_dead_end_belongs_to_closing_and_tells_nothing_beside_others():
    false = resolvent([], kind=2, origin_kind=0)
    nothing = ["nothing more"]
    assert located(step(false), step()) == Difference(Stage.CLOSE, "resolvents.atoms", ["FALSE"], nothing)
    assert located(step(), step(false)) == Difference(Stage.CLOSE, "resolvents.atoms", nothing, ["FALSE"])
    fact = [Names(small_trace()).resolvent(A)]
    assert located(step(false), step(A)) == Difference(Stage.MATCH_FACTS, "resolvents.atoms", nothing, fact)
    assert located(step(A), step(false)) == Difference(Stage.MATCH_FACTS, "resolvents.atoms", fact, nothing)


def test_as_many_in_all_but_others_dropped_is_a_difference_of_the_limit():
    def stage(expected: StepView, actual: StepView) -> Stage | None:
        found = located(expected, actual)
        return found.stage if found else None

    assert stage(step(A, B), step(A, dropped=(1, 0))) is Stage.LIMIT
    assert stage(step(A, B), step(A, dropped=(0, 1))) is Stage.LIMIT
    assert stage(step(A, dropped=(0, 1)), step(A, B)) is Stage.LIMIT
    assert stage(step(A, B, dropped=(1, 1)), step(A, dropped=(1, 1))) is Stage.MATCH_FACTS
    assert stage(step(A, B, dropped=(1, 0)), step(A, dropped=(1, 2))) is Stage.MATCH_FACTS
    assert stage(step(A, dropped=(1, 0)), step(B, dropped=(1, 0))) is Stage.MATCH_FACTS


def test_what_the_same_clause_made_otherwise_is_renamed_pruned_or_resolved():
    def stage(expected: list[tuple[int, int, int]], actual: list[tuple[int, int, int]]) -> Stage | None:
        found = located(step(resolvent(expected, 5)), step(resolvent(actual, 5)))
        return found.stage if found else None

    one, two, loop = (0, 3, -1), (0, 4, 4), (0, -1, -1)
    assert stage([one, two], [(0, 3, -2), two]) is Stage.RENAME
    assert stage([loop], [(0, -1, -2)]) is Stage.RESOLVE
    assert stage([one, two, loop], [one, loop]) is stage([one], [one, two]) is Stage.PRUNE
    assert stage([one, two], [two]) is stage([loop], [one, loop]) is Stage.PRUNE
    assert stage([one, two, loop], [loop, one]) is Stage.RESOLVE
    assert stage([one, two], [two, one]) is Stage.RESOLVE
    assert stage([one], [two]) is Stage.RESOLVE
    assert stage([one, two], [loop]) is Stage.RESOLVE


def test_another_goal_is_a_fault_of_the_step_before_or_at_the_first_step_of_the_slot():
    names = Names(small_trace())
    other = step(A, goal=(*GOAL, *GOAL))
    for actual, field in ((other, "steps.goal_atoms"), (step(A, depth=2), "steps.depth")):
        for is_first, stage in ((True, Stage.RECYCLE), (False, Stage.ADVANCE)):
            found = locate_difference(step(A), actual, names, is_first, 0.0)
            assert found is not None
            assert (found.stage, found.field) == (stage, field)


def test_another_order_and_other_clauses_are_distinguished():
    order = located(step(A, B), step(B, A))
    assert order is not None
    assert (order.stage, order.field) == (Stage.RESOLVE, "resolvents.order")
    other = located(step(A), step(A._replace(origin=6)))
    assert other is not None
    assert (other.stage, other.field) == (Stage.MATCH_FACTS, "resolvents.origin")
