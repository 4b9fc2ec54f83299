"""The causes of planted faults with their conditions, and the smallest comparisons that show them."""

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from walk_faults import FAULTS, Walk

import kgverify
from kgverify.environments.report import EnvironmentReport
from kgverify.environments.verify import Comparing, compare_environments

CONDITIONS = {
    "RewardDoubledForAction2": "steps with action 2 are",
    "StaleObservationInEvery16thSlot": "in every 16th slot (slot 15 first) are",
    "TruncatedTakenForTerminated": "steps that truncate their episode are",
    "EnergyKeptAfterTruncation": "resets of an episode that follows a truncation are",
    "DecayFromTheSecondEpisode": "steps at episode 2 or later of their slot are",
}
"""The words of the conditions of some faults."""


def compare_fault(name: str, *, shows_states: bool = False, shrinks: bool = True) -> EnvironmentReport:
    right, wrong = (partial(each, shows_states=shows_states) for each in (Walk, FAULTS[name][1]))
    comparing = Comparing(slots=32 if "16th" in name else 16, steps=60, shrinks=shrinks)
    report, _ = compare_environments(right, wrong, comparing)
    return report


@pytest.mark.parametrize("name", CONDITIONS)
def test_the_condition_of_a_fault_is_found(name: str) -> None:
    report = compare_fault(name, shrinks=False)
    assert [cause.stage for cause in report.causes] == [FAULTS[name][0]]
    assert CONDITIONS[name] in report.causes[0].condition


@pytest.mark.parametrize("shows_states", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("name", ["RewardOfTheNextSlot", "SeedReusedAtReset", "LimitOneStepLate"])
def test_a_difference_shrinks_to_few_slots_and_steps(name: str, shows_states: bool) -> None:
    report = compare_fault(name, shows_states=shows_states)
    shrunk = report.shrunk
    assert shrunk is not None
    assert shrunk.divergence.stage == FAULTS[name][0]
    assert shrunk.repeats
    assert shrunk.slots == (2 if "Next" in name else 1)
    # The limit is 12 steps, and only a state that can be set leads there in one.
    assert shrunk.steps <= (12 if "Limit" in name and not shows_states else 3)


WALK_FILE = """
import numpy as np
import kgverify as kv

class Walk:
    def __init__(self, slots, wrong):
        self.slots, self.wrong = slots, wrong

    def reset(self, queries):
        return {"at": np.zeros(self.slots, np.int64), "count": np.zeros(self.slots, np.int64)}

    def step(self, state, action):
        at, count = state["at"] + np.where(action > 0, 1, -1), state["count"] + 1
        reward = np.where(self.wrong & (at == 2), 2.0, 1.0)
        return {"at": at, "count": count}, reward, np.abs(at) == 3

right = kv.EnvironmentSpec(lambda slots: Walk(slots, False), autoreset="disabled", actions=2)
wrong = kv.EnvironmentSpec(lambda slots: Walk(slots, True), autoreset="disabled", actions=2)
"""
"""Two sides that differ at one place."""


def test_the_rendered_test_of_a_difference_fails_until_it_is_repaired(tmp_path: Path) -> None:
    path = tmp_path / "walk.py"
    path.write_text(WALK_FILE.replace("", ""))
    sides = [f"{path}:{name}" for name in ("right", "wrong")]
    shrunk = kgverify.verify_env(*sides).shrunk
    assert (shrunk.slots, shrunk.steps) == (1, 1)
    assert shrunk.states is not None
    for actual, fails in ((sides[1], True), (sides[0], False)):
        written: dict[str, Any] = {}
        exec(shrunk.render_test(sides[0], actual), written)
        with pytest.raises(AssertionError, match="reward") if fails else nullcontext():
            written["test_environments_agree"]()
