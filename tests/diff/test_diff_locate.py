"""The stage that is read off two steps, for lists of resolvents that differ in one thing."""

from diff_traces import small_trace
from test_diff_classify import resolvent, step

from kgverify.diff.locate import Difference, locate_difference, shorten
from kgverify.diff.view import Names, StepView
from kgverify.logic.stages import Stage

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


def test_another_order_and_other_clauses_are_told_apart():
    order = located(step(A, B), step(B, A))
    assert order is not None
    assert (order.stage, order.field) == (Stage.RESOLVE, "resolvents.order")
    other = located(step(A), step(A._replace(origin=6)))
    assert other is not None
    assert (other.stage, other.field) == (Stage.MATCH_FACTS, "resolvents.origin")
