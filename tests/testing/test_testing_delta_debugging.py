"""Delta debugging: what remains fails, and nothing more can be removed, with and without tests of many attempts at once."""

import random

import pytest

from kgverify.kinds import minimize
from kgverify.runs.delta_debugging import halve


class Batches:
    """A test of many attempts at once that also names some attempts that do not fail."""

    def __init__(self, fails, capacity):
        self._fails, self._capacity = fails, capacity
        self.num_runs = 0

    def capacity(self, kept):
        return self._capacity

    def find_suspects(self, attempts, kept):
        self.num_runs += 1
        assert self._fails(kept)
        return [i for i, attempt in enumerate(attempts) if self._fails(attempt) or i % 5 == 0]


@pytest.mark.parametrize("capacity", [None, 1, 7, 1000])
@pytest.mark.parametrize("seed", range(4))
def test_the_needed_items_remain_in_order_and_no_others(seed, capacity):
    rng = random.Random(seed)
    items = rng.sample(range(1000), rng.randint(1, 60))
    needed = set(rng.sample(items, rng.randint(0, min(4, len(items)))))

    def fails(kept):
        return needed <= set(kept)

    sift = None if capacity is None else Batches(fails, capacity)
    assert minimize(items, fails, sift) == tuple(item for item in items if item in needed)


def test_no_single_item_can_be_removed_though_others_would_do_as_well():
    kept = minimize(range(20), lambda items: sum(items) >= 50)
    assert sum(kept) >= 50
    assert all(sum(kept) - item < 50 for item in kept)


def test_many_attempts_at_once_take_few_runs():
    def fails(kept):
        return {3, 77} <= set(kept)

    sift = Batches(fails, 1000)
    assert minimize(range(100), fails, sift) == (3, 77)
    assert sift.num_runs < 12


def test_halving_finds_one_culprit_and_keeps_a_pair_that_fails_only_together():
    assert halve(range(33), lambda items: 20 in items) == [20]
    assert halve(range(8), lambda items: {0, 7} <= set(items)) == list(range(8))
