"""Whatever single element of a trace is wrong is found, in the right candidate and step."""

import numpy as np
import pytest
from comparison_traces import (
    COUNTS,
    column_of,
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
from kgverify.comparison.compare import compare
from kgverify.comparison.result import Level
from kgverify.kinds import KNOWLEDGE_GRAPH
from kgverify.trace.model.columns import starts_of
from kgverify.trace.model.trace import Trace

EVERY_COLUMN = sorted(KNOWLEDGE_GRAPH.compared_names)
NOT_IN_LOCKSTEP = ("candidates.log_probability",)

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
    "candidates.outcome": ("recycle", "candidates.outcome"),
    "candidates.is_limited": ("advance", "candidates.is_limited"),
    "candidates.log_probability": ("advance", "candidates.log_probability"),
}


def changed(value):
    """Something else of the same type that fits everywhere."""
    if value.dtype.kind == "f":
        return value + 0.5
    return 1 - value if value.dtype == np.uint8 and value < 2 else value + 1


def test_the_traces_have_something_in_every_column():
    for trace in (small_trace(), small_lockstep_trace()):
        assert all(len(column_of(trace, name)) > 20 for name in EVERY_COLUMN)
    assert {*STAGES, *CANDIDATE_STAGES, *COUNTS} | {f"candidates.{f}" for f in ("query", "side", "atom")} == set(
        EVERY_COLUMN
    )


def test_a_trace_agrees_with_itself_in_every_column():
    for trace, lockstep in ((small_trace(), False), (small_lockstep_trace(), True)):
        comparison = compare(trace, trace, lockstep=lockstep)
        assert comparison.verdict is Verdict.AGREE
        assert comparison.level is None
        assert set(comparison.coverage.fields) == set(EVERY_COLUMN) - (set(NOT_IN_LOCKSTEP) if lockstep else set())
        assert comparison.coverage.candidates == len(trace.columns.candidates.query)
        assert comparison.coverage.steps == len(trace.columns.steps.depth)
        assert comparison.coverage.resolvents == len(trace.columns.resolvents.kind)
        assert {rule.field for rule in comparison.equality} == set(comparison.coverage.fields)


@pytest.mark.parametrize("lockstep", [False, True])
@pytest.mark.parametrize("name", STAGES)
def test_an_element_of_a_step_is_found_in_its_step(name: str, lockstep: bool):
    trace = small_lockstep_trace() if lockstep else small_trace()
    size = len(column_of(trace, name))
    for element in (0, size // 3, size // 2, size - 1):
        place = (element, 2) if column_of(trace, name).ndim == 2 else element
        actual = with_element(trace, name, place, changed)
        comparison = compare(trace, actual, lockstep=lockstep)
        assert comparison.verdict is Verdict.DIVERGE
        (divergence,) = comparison.divergences
        candidate, step = place_of_step(small_trace(), row_of_element(trace, name, element))
        if lockstep:
            candidate = row_of_element(trace, name, element)
        assert (divergence.candidate, divergence.step) == (candidate, step)
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
        assert (divergence.stage, divergence.field) == CANDIDATE_STAGES[name]
        assert isinstance(divergence.expected, str)
        assert divergence.expected != divergence.actual


@pytest.mark.parametrize("name", ["candidates.query", "candidates.side", "candidates.atom"])
def test_another_candidate_is_one_missing_and_one_extra(name: str):
    trace = small_trace()
    place = (3, 1) if name == "candidates.atom" else 3
    comparison = compare(trace, with_element(trace, name, place, lambda value: value + 2))
    assert comparison.verdict is Verdict.DIVERGE
    missing, extra = comparison.divergences
    assert (missing.field, extra.field, missing.candidate) == ("candidates.atom", "candidates.atom", 3)
    assert (missing.actual, extra.expected) == ("no such candidate", "no such candidate")
    assert {missing.stage, extra.stage} <= {"corrupt", "recycle"}


@pytest.mark.parametrize("lockstep", [False, True])
@pytest.mark.parametrize("name", COUNTS)
def test_a_boundary_that_moved_is_found(name: str, lockstep: bool):
    trace = small_lockstep_trace() if lockstep else small_trace()
    counts = column_of(trace, name)
    for row in np.flatnonzero(counts[:-1] > 0)[[0, 5, -1]].tolist():
        comparison = compare(trace, with_boundary_moved(trace, name, row), lockstep=lockstep)
        assert comparison.verdict is Verdict.DIVERGE
        if not lockstep and name.startswith("steps"):
            assert (comparison.divergences[0].candidate, comparison.divergences[0].step) == place_of_step(trace, row)


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
        assert comparison.verdict is Verdict.DIVERGE
        assert comparison.level is not None
        assert comparison.level is not Level.BITS
        if not name.startswith("candidates.") and name not in COUNTS and not lockstep:
            (divergence,) = comparison.divergences
            row = row_of_element(trace, name, element)
            assert (divergence.candidate, divergence.step) == place_of_step(trace, row)


def test_later_steps_are_counted_as_consequences_and_not_as_compared():
    trace = small_trace()
    starts = starts_of(trace.columns.candidates.num_steps)
    candidate = int(np.argmax(trace.columns.candidates.num_steps))
    num_steps = int(trace.columns.candidates.num_steps[candidate])
    assert num_steps > 4
    row = int(starts[candidate]) + 1
    actual: Trace = trace
    for later in range(row, int(starts[candidate + 1])):
        actual = with_element(actual, "steps.dropped_atoms", later, changed)
    comparison = compare(trace, actual)
    (divergence,) = comparison.divergences
    assert (divergence.step, divergence.later_steps) == (1, num_steps - 2)
    assert comparison.coverage.steps == len(trace.columns.steps.depth) - (num_steps - 2)
