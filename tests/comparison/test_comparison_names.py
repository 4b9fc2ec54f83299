"""Ids as a person reads them, those that mean nothing included."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from comparison_traces import (
    ORIGINS,
    compare,
    judge,
    shallow_trace,
    small_trace,
    with_element,
    with_header,
    without_columns,
    without_resolvent,
)

from kgverify import Trace


@pytest.mark.parametrize(
    ("column", "place", "value", "shown"),
    [
        ("steps.goal_atoms", (9, 0), 70, "predicate#70("),
        ("steps.goal_atoms", (9, 0), -1, "no atom"),
        ("steps.goal_atoms", (9, 1), 900, "(constant#900, "),
        ("steps.goal_atoms", (9, 1), -3, "(X2, "),
        ("resolvents.kind", 9, 4, "kind#4, with atoms left: "),
        ("resolvents.kind", 9, 1, "TRUE, with atoms left: "),
        ("resolvents.origin", 0, 70, "   by rule 70"),
        ("resolvents.origin", 0, -1, "   by rule -1"),
        ("steps.outcome", 0, 4, "outcome#4"),
        ("steps.outcome", 0, 3, "DEPTH_LIMIT"),
        ("candidates.side", 3, 3, "side#3"),
        ("candidates.side", 3, 2, "none"),
    ],
)
def test_numbers_that_mean_nothing_are_shown_as_numbers(column: str, place: Any, value: int, shown: str):
    actual = with_element(small_trace(), column, place, lambda _: value)
    found = compare(small_trace(), actual).divergences[-1]
    assert shown in f"{found.goal} {found.actual} {found.atom} {found.side}", found


def test_a_resolvent_is_shown_with_the_file_and_line_of_its_clause():
    lines = np.arange(1, len(small_trace().facts) + 1, dtype=np.int32)
    clauses = {"rules": ("r0", "r1", "r2"), "rule_sources": ("rules.txt:1",), "facts_file": "train.txt"}
    trace = replace(with_header(small_trace(), clauses=clauses), fact_lines=lines)
    resolvents = trace.columns.resolvents
    for kind, origin, shown in ((1, 0, "   by r0 [rules.txt:1]"), (1, 1, "   by r1"), (2, None, "train.txt:")):
        rows = np.flatnonzero((resolvents.origin_kind == kind) & ((resolvents.origin == origin) | (origin is None)))
        counts = np.cumsum([0, *trace.columns.steps.num_resolvents])
        step = int(np.searchsorted(counts, rows[0], side="right")) - 1
        (found,) = compare(trace, without_resolvent(trace, step, int(rows[0] - counts[step]))).divergences
        (item,) = found.expected
        line = f"{shown}{resolvents.origin[rows[0]] + 1}]" if kind == 2 else shown
        assert item.endswith(line), item


def lose_a_fact(trace: Trace) -> Trace:
    """A copy that lacks one resolvent of a fact."""
    resolvents, counts = trace.columns.resolvents, trace.columns.steps.num_resolvents
    lost = int(np.flatnonzero((resolvents.origin_kind == 2) & (resolvents.kind == 0))[0])
    step = int(np.repeat(np.arange(len(counts)), counts)[lost])
    return without_resolvent(trace, step, lost - int(counts[:step].sum()))


def test_where_no_clauses_were_recorded_those_named_are_inferred():
    trace = small_trace()
    atom = int(np.flatnonzero(trace.columns.resolvents.atoms[:, 1] >= 0)[4])
    actual = with_element(trace, "resolvents.atoms", (atom, 1), lambda argument: argument + 1)
    for names, num_inferred in (((), 0), (ORIGINS, 1)):
        (divergence,) = compare(trace, without_columns(actual, *names)).divergences
        shown = " ".join(divergence.expected)
        assert (shown.count("   by "), shown.count("(inferred)")) == (1, num_inferred)


def test_an_inferred_fact_is_named_if_the_actual_trace_alone_has_the_facts():
    actual = lose_a_fact(shallow_trace())
    bare = replace(shallow_trace(), facts=None, fact_lines=None, rules=None, fields=actual.fields - {*ORIGINS})
    first = judge(bare, actual).divergences[0]
    assert first.stage == "match_facts"
    assert re.search(r"   by fact neighborOf\(\w+, \w+\) \[train.txt:\d+\] \(inferred\)$", first.expected[0])


def test_nothing_is_inferred_from_facts_whose_rules_are_lost():
    actual = lose_a_fact(shallow_trace())
    fields = actual.fields - {*ORIGINS}
    expected, bare = (replace(each, rules=None, fields=fields) for each in (shallow_trace(), actual))
    first = judge(expected, replace(bare, facts=None, fact_lines=None)).divergences[0]
    assert "(inferred)" not in str(first.expected)
    assert "no program to infer origins from" in first.evidence
