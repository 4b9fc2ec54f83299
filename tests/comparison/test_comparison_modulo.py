"""Equality up to names, order and duplicates: what is benign is counted apart, and everything else is still found."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from comparison_traces import (
    KINDS,
    column_of,
    compare,
    judge,
    shallow_trace,
    small_lockstep_trace,
    small_trace,
    starts_of,
    twin,
    with_column,
    with_columns,
    with_element,
    with_header,
    with_resolvents,
    without_columns,
)
from trace_changes import random_problems, store

import kgverify as kv
from kgverify import Equality, Trace, UserError, Verdict

SINGLE = ("names", "order", "duplicates")
EVERY = "names,order,duplicates"


@pytest.mark.parametrize("kinds", KINDS)
def test_twins_agree_up_to_what_makes_them_differ_and_no_further(kinds: str):
    expected = shallow_trace()
    for sides in ((expected, twin(expected, 3, kinds=kinds)), (twin(expected, 3, kinds=kinds), expected)):
        comparison = compare(*sides, modulo=kinds)
        assert comparison.verdict is Verdict.AGREE
        assert {each.kind for each in comparison.benign} == set(comparison.modulo) == set(kinds.split(","))
        assert comparison.coverage.steps == len(expected.columns.steps.depth)
    assert compare(*sides).verdict is Verdict.DIVERGE
    others = [each for each in SINGLE if each != kinds]
    assert (compare(*sides, modulo=others).verdict is Verdict.AGREE) == (len(others) == 3 and "," in kinds)


def test_equal_traces_have_no_benign_differences_and_state_the_rule_of_each_field():
    comparison = compare(small_trace(), small_trace(), modulo=EVERY)
    assert (comparison.verdict, comparison.benign) == (Verdict.AGREE, ())
    rules = {each.field: each.rule for each in compare(small_trace(), small_trace(), modulo="names,order").equality}
    assert rules["resolvents.atoms"] == "equal up to names of variables and the order of resolvents"
    assert rules["steps.goal_atoms"] == "equal up to names of variables"
    assert rules["steps.outcome"] == "equal"


def test_a_benign_difference_shows_both_sides_without_those_of_other_kinds(tmp_path: Path):
    report = judge(shallow_trace(), twin(shallow_trace(), 3), modulo="names,order")
    names, order = report.benign
    assert report.verdict is Verdict.AGREE
    assert report.self_test.columns > 20
    assert order.field == "resolvents.order"
    assert sorted(order.expected) == sorted(order.actual)
    assert names.field in ("resolvents.atoms", "steps.goal_atoms")
    assert names.expected != names.actual
    page = report.to_html(tmp_path / "page.html").read_text()
    assert f"names of variables: {names.num_steps} steps of 22 candidates" in page


def test_what_is_declared_benign_is_parsed_or_refused():
    assert Equality(modulo="none").benign == frozenset()
    assert Equality().benign is None
    assert Equality(modulo="names, order").benign == Equality(modulo=["order", "names"]).benign == {"names", "order"}
    for modulo, text in ((["none", "names"], "none excludes"), ("case", "unknown kind of differences 'case'")):
        with pytest.raises(UserError, match=text):
            Equality(modulo=modulo)


def test_a_real_difference_beside_benign_ones_is_found_in_its_step():
    expected = shallow_trace()
    wrong = with_element(expected, "steps.outcome", -1, lambda outcome: (outcome + 1) % 4)
    comparison = compare(expected, twin(wrong, 5), modulo="names,order")
    (found,) = comparison.divergences
    assert (found.field, found.candidate) == ("steps.outcome", len(expected.columns.candidates.query) - 1)
    assert comparison.benign


def test_a_tie_that_another_order_breaks_otherwise_is_a_near_tie():
    expected = with_columns(
        small_lockstep_trace(), small_lockstep_trace().columns._replace(stages=shallow_trace().columns.stages)
    )
    columns = expected.columns
    steps, scores = columns.steps, columns.resolvents.score
    starts, atoms = starts_of(steps.num_resolvents), starts_of(columns.resolvents.num_atoms)
    contents = [columns.resolvents.atoms[a:b].tolist() for a, b in pairwise(atoms)]
    highest = [a + np.flatnonzero(scores[a:b] == scores[a:b].max()) for a, b in pairwise(starts.tolist())]
    step = next(i for i, rows in enumerate(highest) if contents[rows[0]] != contents[rows[-1]])
    begin, end = starts[step : step + 2]
    rows = np.arange(len(scores))
    rows[begin:end] = rows[begin:end][::-1]
    choice = steps.choice.copy()
    choice[step] = int(np.argmax(scores[rows[begin:end]]))
    actual = with_column(with_resolvents(expected, rows, steps.num_resolvents), "steps.choice", choice)
    comparison = compare(expected, actual, lockstep=True, modulo="order")
    assert comparison.divergences == ()
    (tie,) = comparison.near_ties
    assert (tie.candidate, tie.gap) == (step, 0.0)
    assert tie.expected.split(": ")[1] != tie.actual.split(": ")[1]


@pytest.mark.parametrize("role", ["expected", "actual", "both"])
def test_names_do_not_count_where_an_engine_has_its_own(role: str):
    sides = [shallow_trace(), twin(shallow_trace(), 6, kinds="names")]
    for side in {"expected": [0], "actual": [1], "both": [0, 1]}[role]:
        sides[side] = with_header(sides[side], engine={"name": "theirs", "variables": "own"})
    comparison = compare(*sides)
    assert (comparison.verdict, comparison.modulo) == (Verdict.AGREE, ("names",))
    assert any("variables of theirs have numbers of their own" in note for note in comparison.notes)
    assert compare(*sides, modulo=()).verdict is Verdict.DIVERGE
    assert compare(*sides, modulo="order").modulo == ("order",)


def repeated(trace: Trace, row: int, times: int) -> Trace:
    """Return a trace in which the first resolvent of a step is listed more often, before the others."""
    starts, counts = (
        starts_of(column_of(trace, "steps.num_resolvents")),
        column_of(trace, "steps.num_resolvents").copy(),
    )
    rows = np.insert(np.arange(starts[-1]), starts[row], np.full(times, starts[row]))
    counts[row] += times
    return with_element(with_resolvents(trace, rows, counts), "steps.choice", row, lambda choice: choice + times)


@pytest.mark.parametrize("kinds", ["order", "duplicates", "order,duplicates"])
def test_a_choice_is_that_of_a_resolvent_and_not_of_its_place(kinds: str):
    trace = without_columns(shallow_trace(), "candidates.log_probability")
    # Scores are all different, so that no choice is a near-tie.
    trace = with_column(trace, "resolvents.score", -np.arange(len(column_of(trace, "resolvents.score")), dtype=float))
    row = int(np.argmax(trace.columns.steps.num_resolvents))
    for choice in range(int(trace.columns.steps.num_resolvents[row])):
        choices = column_of(trace, "steps.choice").copy()
        choices[row] = choice
        expected = with_column(trace, "steps.choice", choices)
        actual = repeated(expected, row, 5) if "duplicates" in kinds else expected
        actual = twin(actual, choice, kinds="order") if "order" in kinds else actual
        assert compare(expected, actual, modulo=kinds).divergences == ()
        other = (choice + 1) % int(trace.columns.steps.num_resolvents[row])
        wrong = with_element(expected, "steps.choice", row, lambda _, other=other: other)
        (found,) = compare(wrong, actual, modulo=kinds).divergences
        assert found.field == "steps.choice"


def test_origins_of_repeated_resolvents_agree_if_they_have_one_in_common():
    expected = shallow_trace()
    columns = expected.columns
    num = len(columns.resolvents.kind)
    doubled = with_resolvents(expected, np.repeat(np.arange(num), 2), 2 * columns.steps.num_resolvents)
    doubled = with_column(doubled, "steps.choice", 2 * columns.steps.choice)
    # Each score counts twice.
    sums = columns.candidates.log_probability - np.log(2) * columns.candidates.num_steps
    doubled = with_column(doubled, "candidates.log_probability", sums)
    kind, origin = (column_of(doubled, f"resolvents.{name}") for name in ("origin_kind", "origin"))
    others = np.where((kind == 1) & (np.arange(2 * num) % 2 == 0), (origin + 1) % 3, origin).astype(np.int32)
    wrong = np.where(kind == 1, 7, origin).astype(np.int32)
    for origins, verdict in ((others, Verdict.AGREE), (wrong, Verdict.DIVERGE)):
        actual = with_column(doubled, "resolvents.origin", origins)
        assert compare(expected, actual, modulo="duplicates").verdict is verdict


def test_sums_that_count_repeated_resolvents_are_compared_as_far_as_scores_are_known():
    expected = shallow_trace()
    twice = twin(expected, 3, kinds="duplicates")
    bare = without_columns(twice, "resolvents.score")
    assert compare(expected, bare, modulo="duplicates").verdict is Verdict.AGREE
    # The sums of the candidates without repeated resolvents are compared.
    is_repeated = twice.columns.steps.num_resolvents != expected.columns.steps.num_resolvents
    owner = np.repeat(np.arange(len(expected.columns.candidates.query)), expected.columns.candidates.num_steps)
    alone = int(np.setdiff1d(owner, owner[is_repeated])[0])
    wrong = with_element(bare, "candidates.log_probability", alone, lambda value: value - 1)
    (found,) = compare(expected, wrong, modulo="duplicates").divergences
    assert (found.candidate, found.field) == (alone, "candidates.log_probability")
    # The side with scores repeats resolvents: its sums without repetitions are known.
    scored = replace(twice, rankings=None)
    without = without_columns(expected, "resolvents.score")
    wrong = with_column(without, "candidates.log_probability", column_of(expected, "candidates.log_probability") - 0.5)
    verdicts = [compare(scored, each, modulo="duplicates").verdict for each in (without, wrong)]
    assert verdicts == [Verdict.AGREE, Verdict.DIVERGE]


@pytest.mark.parametrize(
    ("kinds", "keeps_all", "verdict"),
    [
        ("names", True, Verdict.AGREE),
        ("order", True, Verdict.AGREE),
        ("names,order", True, Verdict.INCONCLUSIVE),
        ("duplicates", True, Verdict.INCONCLUSIVE),
        ("names", False, Verdict.INCONCLUSIVE),
    ],
)
def test_digests_decide_what_they_are_blind_to_and_leave_the_rest_open(
    tmp_path: Path, kinds: str, keeps_all: bool, verdict: Verdict
):
    sides = []
    for i, trace in enumerate((shallow_trace(), twin(shallow_trace(), 8, kinds=kinds))):
        lowered = kv.open_trace(store(trace, tmp_path / f"{i}.h5", level="digests")).load()
        # kgverify's own writer keeps the first of the three digests.
        sides.append(replace(lowered, digests=trace.digests) if keeps_all else lowered)
    comparison = compare(*sides, modulo=kinds)
    assert comparison.verdict is verdict
    if verdict is Verdict.AGREE:
        assert {each.kind for each in comparison.benign} == {kinds}
    else:
        assert any("a trace without goals does not show whether" in reason for reason in comparison.reasons)


def test_random_problems_give_no_false_alarm_and_faults_are_found_in_twins_as_without():
    pytest.importorskip("kgverify.prover.engine")
    num_found = 0
    for seed, (expected, wrong) in enumerate(random_problems(15, ("rule-cap", "last-fact-lost", "nan-score"))):
        for kinds in KINDS:
            comparison = compare(expected, twin(expected, seed, kinds=kinds), modulo=kinds)
            assert comparison.verdict is Verdict.AGREE
            assert comparison.coverage.steps == len(expected.columns.steps.depth)
        for actual in wrong:
            places = []
            for each in (actual, twin(actual, seed)):
                found = compare(expected, each, modulo="names,order")
                places.append({(one.candidate, one.step) for one in (*found.divergences, *found.near_ties)})
            assert places[0] == places[1]
            num_found += len(places[0])
    assert num_found
