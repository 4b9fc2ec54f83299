"""A comparison that lists one divergence lists the first, wherever the traces are."""

import numpy as np
import pytest
from comparison_traces import with_element
from stream_pairs import base_trace, cut_steps, double, lose, move_boundary, rename_constants, shuffle, store, tie

from kgverify.comparison.compare import compare


def first_of(expected, actual):
    return compare(expected, actual, kept=1).divergences


@pytest.mark.sample(2, deep=6)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["steps.choice", "steps.goal_atoms", "resolvents.atoms", "steps.outcome"])
def test_a_planted_divergence_is_found(seed, name, tmp_path):
    trace = base_trace(3)
    random = np.random.default_rng(seed)
    level, field = name.split(".")
    length = len(getattr(getattr(trace.columns, level), field))
    row = int(random.integers(length))
    changed = with_element(trace, name, (row, 1) if "atoms" in name else row, lambda v: (int(v) + 1) % 3)
    first, second = store(trace, tmp_path / "a"), store(changed, tmp_path / "b", shard_steps=40 + seed)
    assert first_of(first, second) == first_of(trace, changed) == compare(trace, changed).divergences[:1]
    assert first_of(second, first) == first_of(changed, trace) == compare(changed, trace).divergences[:1]


@pytest.mark.parametrize("change", [cut_steps, double, lose, move_boundary, rename_constants, shuffle])
def test_traces_of_another_shape_or_order_are_compared_as_a_whole(change, tmp_path):
    trace = base_trace()
    changed = change(trace, np.random.default_rng(4))
    first, second = store(trace, tmp_path / "a"), store(changed, tmp_path / "b")
    assert first_of(first, second) == compare(trace, changed).divergences[:1]


def test_a_trace_on_disk_is_compared_with_one_in_memory(tmp_path):
    trace = base_trace()
    changed = lose(trace, np.random.default_rng(4))
    first, second = store(trace, tmp_path / "a"), store(changed, tmp_path / "b")
    expected = compare(trace, changed)
    assert expected.divergences
    assert compare(first, changed) == compare(trace, second) == expected


def test_a_near_tie_is_not_the_first_divergence(tmp_path):
    trace = base_trace(score_error=10.0)
    changed = tie(trace, np.random.default_rng(1))
    last = len(trace.columns.steps.choice) - 1
    changed = with_element(changed, "steps.outcome", last, lambda value: (value + 1) % 3)
    first, second = store(trace, tmp_path / "a"), store(changed, tmp_path / "b")
    assert compare(trace, changed).near_ties
    assert first_of(first, second) == first_of(trace, changed)
    assert first_of(first, first) == ()
