"""Candidates that only one side has: what was drawn instead, and what the batch machinery lost or doubled."""

from dataclasses import replace

import numpy as np
from comparison_traces import small_trace, with_columns, with_element

from kgverify.comparison.compare import Comparer
from kgverify.comparison.step_view import side_name
from kgverify.trace.model.columns import select_candidates
from kgverify.trace.model.trace import Trace

ROW = 4


def redrawn(expected: Trace, actual: Trace) -> dict[tuple[int, str], str]:
    comparer = Comparer(expected, actual)
    comparer.compare()
    return comparer.draws


def test_what_was_drawn_instead_is_counted_and_facts_among_it_are_named():
    trace = small_trace()
    candidates = trace.columns.candidates
    group = int(candidates.query[ROW]), side_name(int(candidates.side[ROW]))
    facts = {tuple(fact) for fact in trace.facts.tolist()}
    predicate, first, second = candidates.atom[ROW].tolist()
    assert first != second

    def drawn(atom: tuple[int, int, int]) -> Trace:
        return with_element(trace, "candidates.atom", ROW, lambda _: atom)

    one = "1 candidate drawn instead of 1 other"
    plain = (predicate, first, first)
    assert plain not in facts
    assert redrawn(trace, drawn(plain)) == {group: one}
    assert redrawn(trace, drawn(min(facts))) == {group: f"{one}, 1 of them facts"}
    assert redrawn(trace, drawn((predicate, second, first))) == {group: f"{one}: their arguments swapped"}
    assert redrawn(replace(trace, facts=None), drawn(min(facts))) == {group: one}


def test_one_candidate_lost_and_others_of_another_query_doubled_is_no_other_draw():
    trace = small_trace()
    rows = np.arange(len(trace.columns.candidates.query))
    other = int(rows[-1])
    assert trace.columns.candidates.query[other] != trace.columns.candidates.query[ROW]
    actual = with_columns(trace, select_candidates(trace.columns, np.array([*np.delete(rows, ROW), other])))
    comparer = Comparer(trace, actual)
    stages = [(each.stage, each.actual == "no such candidate") for each in comparer.compare().divergences]
    assert (stages, comparer.draws) == ([("recycle", True), ("recycle", False)], {})


def with_candidates(trace: Trace, query: int, side: int, *atoms: tuple[int, int, int]) -> Trace:
    """A copy with further candidates, which do as the first one does."""
    rows = np.array([*range(len(trace.columns.candidates.query)), *(0 for _ in atoms)])
    columns = select_candidates(trace.columns, rows)
    num = len(atoms)
    c = columns.candidates
    for column, value in ((c.query, query), (c.side, side), (c.atom, atoms)):
        column[-num:] = value
    return with_columns(trace, columns)


def test_an_unknown_candidate_listed_twice_is_doubled_only_where_others_were_drawn():
    trace = small_trace()
    query, side = (int(column[ROW]) for column in trace.columns.candidates[:2])
    predicate, first, _ = trace.columns.candidates.atom[ROW].tolist()
    unknown = predicate, first, first
    # Invented: the draw went on.
    invented = Comparer(trace, with_candidates(trace, query, side, unknown, unknown)).compare().divergences
    assert [each.stage for each in invented] == ["corrupt", "corrupt"]
    # Drawn instead of another one, and then doubled.
    drawn = with_element(trace, "candidates.atom", ROW, lambda _: unknown)
    doubled = Comparer(trace, with_candidates(drawn, query, side, unknown)).compare().divergences
    assert sorted(each.stage for each in doubled) == ["corrupt", "corrupt", "recycle"]


def test_the_fields_compared_are_listed_in_order():
    comparison = Comparer(small_trace(), small_trace()).compare()
    assert list(comparison.coverage.fields) == sorted(comparison.coverage.fields)
    assert [rule.field for rule in comparison.equality] == list(comparison.coverage.fields)
