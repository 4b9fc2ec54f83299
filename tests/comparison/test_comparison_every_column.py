"""Whatever single element of a trace is wrong is found, in the right candidate and step."""

import numpy as np
import pytest
from comparison_traces import (
    COUNTS,
    column_of,
    compare,
    place_of_step,
    row_of_element,
    small_lockstep_trace,
    small_trace,
    with_boundary_moved,
    with_element,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kgverify import Verdict
from kgverify.kinds import KNOWLEDGE_GRAPH

EVERY_COLUMN = sorted(KNOWLEDGE_GRAPH.compared_names)
NOT_IN_LOCKSTEP = ("candidates.log_probability",)
IDENTITY = ("candidates.query", "candidates.side", "candidates.atom")

STAGES = {
    "steps.depth": ("recycle", "advance"),
    "steps.goal_atoms": ("recycle", "advance"),
    "steps.dropped_atoms": ("limit",),
    "steps.dropped_resolvents": ("limit",),
    "steps.choice": ("choose",),
    "steps.outcome": ("finish",),
    "resolvents.kind": ("resolve", "match_rules", "match_facts", "close", "prune"),
    "resolvents.origin_kind": ("match_rules", "match_facts"),
    "resolvents.origin": ("match_rules", "match_facts"),
    "resolvents.score": ("score",),
    "resolvents.atoms": ("resolve", "rename"),
}
FIELDS = {"resolvents.kind": "resolvents.atoms", "resolvents.origin_kind": "resolvents.origin"}
CANDIDATE_STAGES = {
    "candidates.outcome": "recycle",
    "candidates.is_limited": "advance",
    "candidates.log_probability": "advance",
}


def changed(value):
    """Something else of the same type that fits everywhere."""
    if value.dtype.kind == "f":
        return value + 0.5
    return 1 - value if value.dtype == np.uint8 and value < 2 else value + 1


def traces():
    return (small_trace(), False), (small_lockstep_trace(), True)


def test_a_trace_agrees_with_itself_in_every_column():
    assert {*STAGES, *CANDIDATE_STAGES, *COUNTS, *IDENTITY} == {*EVERY_COLUMN}, (
        "add a column to STAGES, or a table beside it, in tests/comparison/test_comparison_every_column.py"
    )
    for trace, lockstep in traces():
        assert all(len(column_of(trace, name)) > 20 for name in EVERY_COLUMN)
        comparison = compare(trace, trace, lockstep=lockstep)
        assert (comparison.verdict, comparison.level) == (Verdict.AGREE, None)
        coverage = comparison.coverage
        assert list(coverage.fields) == [each for each in EVERY_COLUMN if not lockstep or each not in NOT_IN_LOCKSTEP]
        assert [rule.field for rule in comparison.equality] == list(coverage.fields)
        sizes = [len(column_of(trace, each)) for each in ("candidates.query", "steps.depth", "resolvents.kind")]
        assert [coverage.candidates, coverage.steps, coverage.resolvents] == sizes


@pytest.mark.parametrize("name", STAGES)
def test_an_element_of_a_step_is_found_in_its_step(name: str):
    for trace, lockstep in traces():
        size = len(column_of(trace, name))
        for element in (0, size // 2, size - 1):
            actual = with_element(trace, name, (element, 2) if column_of(trace, name).ndim == 2 else element, changed)
            (divergence,) = compare(trace, actual, lockstep=lockstep).divergences
            row = row_of_element(trace, name, element)
            candidate, step = place_of_step(small_trace(), row)
            assert (divergence.candidate, divergence.step) == (row if lockstep else candidate, step)
            assert divergence.stage in STAGES[name]
            assert divergence.field == FIELDS.get(name, name)
            assert divergence.expected != divergence.actual
            assert divergence.goal


@pytest.mark.parametrize("name", CANDIDATE_STAGES)
def test_how_a_candidate_ended_is_found_in_the_candidate(name: str):
    trace = small_trace()
    for element in (0, len(trace.columns.candidates.query) - 1):
        (divergence,) = compare(trace, with_element(trace, name, element, changed)).divergences
        assert (divergence.candidate, divergence.step) == (element, -1)
        assert (divergence.stage, divergence.field) == (CANDIDATE_STAGES[name], name)
        assert divergence.expected != divergence.actual


@pytest.mark.parametrize("name", IDENTITY)
def test_another_candidate_is_one_missing_and_one_extra(name: str):
    trace = small_trace()
    place = (3, 1) if name == "candidates.atom" else 3
    missing, extra = compare(trace, with_element(trace, name, place, lambda value: value + 2)).divergences
    assert (missing.field, extra.field, missing.candidate) == ("candidates.atom", "candidates.atom", 3)
    assert (missing.actual, extra.expected) == ("no such candidate", "no such candidate")
    assert {missing.stage, extra.stage} <= {"corrupt", "recycle"}


@settings(deadline=None)
@given(data=st.data(), lockstep=st.booleans(), name=st.sampled_from(EVERY_COLUMN))
def test_no_single_change_of_any_element_goes_unseen(data: st.DataObject, lockstep: bool, name: str):
    assume(not (lockstep and name in NOT_IN_LOCKSTEP))
    trace = small_lockstep_trace() if lockstep else small_trace()
    values = column_of(trace, name)
    element = data.draw(st.integers(0, len(values) - 2), label="element")
    if name in COUNTS:
        assume(values[element] > 0)
        actual = with_boundary_moved(trace, name, element)
    else:
        place = (element, data.draw(st.integers(0, 2))) if values.ndim == 2 else element
        if values.dtype.kind == "f":
            delta = data.draw(st.sampled_from([1e-3, -1.0, 1e6, float("nan"), float("inf"), float("-inf")]))
            actual = with_element(trace, name, place, lambda value: value + delta)
        else:
            limits = np.iinfo(values.dtype)
            least = 0 if place != element and place[1] == 0 else -20 if name.endswith("atoms") else limits.min
            value = data.draw(st.integers(int(max(least, limits.min)), int(limits.max)), label="value")
            assume(value != values[place])
            actual = with_element(trace, name, place, lambda _: value)
    for first, second in ((trace, actual), (actual, trace)):
        comparison = compare(first, second, lockstep=lockstep)
        assert comparison.verdict is Verdict.DIVERGE, (
            f"compare {name} in kgverify/comparison/step_view.py and locate.py"
        )
        assert comparison.level not in (None, "bits")
        if (not lockstep and name.startswith("steps")) or (name in STAGES and not lockstep):
            first_found = comparison.divergences[0]
            row = row_of_element(trace, name, element)
            assert (first_found.candidate, first_found.step) == place_of_step(trace, row)
            assert len(comparison.divergences) == 1 or name in COUNTS


def test_the_steps_of_the_candidate_after_a_divergence_follow_from_it():
    trace, alone = small_trace(), small_lockstep_trace()
    num_steps = trace.columns.candidates.num_steps
    candidate = int(np.argmax(num_steps))
    first = int(num_steps[:candidate].sum())
    end = first + int(num_steps[candidate])
    assert end - first > 4
    every = trace
    for row in range(end - 1, first - 1, -1):
        every = with_element(every, "steps.dropped_atoms", row, changed)
        for actual in (every, with_element(trace, "steps.dropped_atoms", row, changed)):
            comparison = compare(trace, actual)
            (divergence,) = comparison.divergences
            assert (divergence.step, divergence.later_steps) == (row - first, end - row - 1)
            assert comparison.coverage.steps == len(trace.columns.steps.depth) - divergence.later_steps
        actual = with_element(alone, "steps.dropped_atoms", row, changed)
        (divergence,) = compare(alone, actual, lockstep=True).divergences
        assert (divergence.step, divergence.later_steps) == (int(trace.columns.steps.depth[row]), 0)
    limited = with_element(trace, "candidates.is_limited", candidate, changed)
    (divergence,) = compare(trace, limited).divergences
    assert (divergence.step, divergence.later_steps) == (-1, 0)
