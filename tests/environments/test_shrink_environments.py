"""The causes of planted faults with their conditions, and the smallest comparisons that show them."""

from functools import partial

import pytest
from walk_faults import FAULTS, Walk

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
