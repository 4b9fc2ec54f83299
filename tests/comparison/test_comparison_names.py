"""Ids as a person reads them, those that mean nothing included."""

from dataclasses import replace

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
from kgverify.comparison.step_view import Names, ResolventView, outcome_name, side_name
from kgverify.program.atoms import Atom


@pytest.fixture
def trace() -> Trace:
    clauses = {"rules": ("r0", "r1"), "rule_sources": ("rules.txt:1",), "facts_file": "train.txt"}
    lines = np.arange(1, len(small_trace().facts) + 1, dtype=np.int32)
    return replace(with_header(small_trace(), clauses=clauses), fact_lines=lines)


def test_symbols_have_names_and_other_ids_their_numbers(trace: Trace):
    names = Names(trace)
    predicates, constants = trace.symbols.predicates, trace.symbols.constants
    assert (names.argument(0), names.argument(len(constants) - 1)) == (constants[0], constants[-1])
    assert names.argument(len(constants)) == f"constant#{len(constants)}"
    assert (names.argument(-1), names.argument(-3)) == ("X0", "X2")
    assert names.atom((0, 0, -1)) == f"{predicates[0]}({constants[0]}, X0)"
    last = len(predicates) - 1
    assert names.atom((last, 0, 0)).startswith(f"{predicates[-1]}(")
    assert names.atom((last + 1, 0, 0)).startswith(f"predicate#{last + 1}(")
    assert names.atom((-1, 0, 0)) == names.atom((-(2**31), 0, 0)) == "no atom"


def test_goals_are_atoms_or_say_what_they_are(trace: Trace):
    names = Names(trace)
    atoms = Atom(0, 0, -1), Atom(0, -1, 1)
    assert names.goal(atoms) == f"{names.atom(atoms[0])}, {names.atom(atoms[1])}"
    assert names.goal(()) == "(no atoms)"
    assert [names.goal((), kind) for kind in (1, 2, 3, 4)] == ["TRUE", "FALSE", "STOP", "kind#4"]
    assert names.goal(atoms[:1], 1) == f"TRUE, with atoms left: {names.atom(atoms[0])}"


def test_clauses_are_printed_with_their_file_and_line_if_known(trace: Trace):
    names = Names(trace)
    assert [names.clause(1, origin) for origin in (0, 1, 2, -1)] == ["r0 [rules.txt:1]", "r1", "rule 2", "rule -1"]
    facts = [f"fact {names.atom(tuple(fact))}" for fact in trace.facts.tolist()]
    num = len(facts)
    assert names.clause(2, 0) == f"{facts[0]} [train.txt:1]"
    assert names.clause(2, num - 1) == f"{facts[-1]} [train.txt:{num}]"
    assert [names.clause(2, origin) for origin in (num, -1)] == [f"fact {num}", "fact -1"]
    assert Names(replace(trace, fact_lines=None)).clause(2, 0) == facts[0]
    assert Names(replace(trace, facts=None)).clause(2, 0) == "fact 0 [train.txt:1]"
    goal = (Atom(0, 0, -1),)
    assert names.resolvent(ResolventView(0, goal, 1, 1, 0.0)) == f"{names.goal(goal)}   by r1"
    assert names.resolvent(ResolventView(2, (), 0, 0, 0.0)) == "FALSE"


def test_outcomes_and_sides_have_names_and_other_numbers_none():
    assert [outcome_name(outcome) for outcome in range(5)] == ["OPEN", "PROVED", "FAILED", "DEPTH_LIMIT", "outcome#4"]
    assert [side_name(side) for side in (0, 1, 2, 3, -1)] == ["head", "tail", "none", "side#3", "side#-1"]


def lose_a_fact(trace: Trace) -> tuple[Trace, str]:
    """A copy that lacks one resolvent of a fact, and the fact with its line."""
    resolvents, counts = trace.columns.resolvents, trace.columns.steps.num_resolvents
    lost = int(np.flatnonzero((resolvents.origin_kind == 2) & (resolvents.kind == 0))[0])
    step = int(np.repeat(np.arange(len(counts)), counts)[lost])
    fewer = without_resolvent(trace, step, lost - int(counts[:step].sum()))
    return fewer, Names(trace).clause(2, int(resolvents.origin[lost]))


def test_where_no_clauses_were_recorded_those_named_are_inferred():
    trace = small_trace()
    atom = int(np.flatnonzero(trace.columns.resolvents.atoms[:, 1] >= 0)[4])
    actual = with_element(trace, "resolvents.atoms", (atom, 1), lambda argument: argument + 1)
    for names, num_inferred in (((), 0), (ORIGINS, 1)):
        (divergence,) = compare(trace, without_columns(actual, *names)).divergences
        shown = " ".join(divergence.expected)
        assert (shown.count("   by "), shown.count("(inferred)")) == (1, num_inferred)


def test_an_inferred_fact_is_named_if_the_actual_trace_alone_has_the_facts():
    actual, fact = lose_a_fact(shallow_trace())
    assert fact.startswith("fact neighborOf(")
    assert "[train.txt:" in fact
    bare = replace(shallow_trace(), facts=None, fact_lines=None, rules=None, fields=actual.fields - {*ORIGINS})
    first = judge(bare, actual).divergences[0]
    assert first.stage == "match_facts"
    assert first.expected[0].endswith(f"   by {fact} (inferred)")


def test_nothing_is_inferred_from_facts_whose_rules_are_lost():
    actual, _ = lose_a_fact(shallow_trace())
    fields = actual.fields - {*ORIGINS}
    expected, bare = (replace(each, rules=None, fields=fields) for each in (shallow_trace(), actual))
    first = judge(expected, replace(bare, facts=None, fact_lines=None)).divergences[0]
    assert "(inferred)" not in str(first.expected)
    assert "no program to infer origins from" in first.evidence
