"""The first divergence, found by digests, is the first that the whole comparison finds in them."""

import numpy as np
import pytest
from comparison_traces import with_element
from stream_pairs import base_trace, cut_steps, double, lose, move_boundary, rename_constants, shuffle, store, tie

from kgverify.comparison.compare import compare_traces
from kgverify.comparison.streaming.first_divergence import find_first_divergence, first_difference
from kgverify.errors import UserError


def first_of(expected, actual):
    divergences = compare_traces(expected, actual).divergences
    return divergences[0] if divergences else None


@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["steps.choice", "steps.goal_atoms", "resolvents.atoms", "steps.outcome"])
def test_a_planted_divergence_is_found(seed, name, tmp_path):
    trace = base_trace(3)
    random = np.random.default_rng(seed)
    level, field = name.split(".")
    length = len(getattr(getattr(trace.columns, level), field))
    place = int(random.integers(length))
    changed = with_element(trace, name, (place, 1) if "atoms" in name else place, lambda v: (int(v) + 1) % 3)
    first, second = store(trace, tmp_path / "a"), store(changed, tmp_path / "b", shard_steps=40 + seed)
    assert find_first_divergence(first, second) == first_of(trace, changed)
    assert find_first_divergence(second, first) == first_of(changed, trace)


@pytest.mark.parametrize("change", [cut_steps, double, lose, move_boundary, rename_constants, shuffle])
def test_traces_of_another_shape_or_order_are_compared_as_a_whole(change, tmp_path):
    trace = base_trace()
    changed = change(trace, np.random.default_rng(4))
    first, second = store(trace, tmp_path / "a"), store(changed, tmp_path / "b")
    assert find_first_divergence(first, second) == first_of(trace, changed)


def test_a_near_tie_is_passed_over(tmp_path):
    trace = base_trace(score_error=10.0)
    changed = tie(trace, np.random.default_rng(1))
    last = len(trace.columns.steps.choice) - 1
    changed = with_element(changed, "steps.outcome", last, lambda value: (value + 1) % 3)
    first, second = store(trace, tmp_path / "a"), store(changed, tmp_path / "b")
    assert compare_traces(trace, changed).near_ties
    assert find_first_divergence(first, second) == first_of(trace, changed)
    assert find_first_divergence(first, first) is None


def test_traces_of_other_runs_have_no_first_divergence(tmp_path):
    trace = base_trace()
    other = with_element(trace, "steps.choice", 0, lambda value: value + 1)
    first = store(trace, tmp_path / "a")
    (tmp_path / "b").mkdir()
    store(other, tmp_path / "b" / "c", shard_steps=30)
    (tmp_path / "b" / "c").rename(tmp_path / "c.partial")
    with pytest.raises(UserError, match="not complete"):
        find_first_divergence(first, tmp_path / "c.partial")


@pytest.mark.parametrize("place", [None, 0, 77_777, 99_999])
def test_the_first_difference_of_digests_in_memory(place):
    digests = np.random.default_rng(0).integers(0, 1 << 63, 100_000, np.uint64)
    other = digests.copy()
    if place is not None:
        other[place:] += np.uint64(1)
    assert first_difference(digests, other) == place
