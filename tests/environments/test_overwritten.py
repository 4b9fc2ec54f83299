"""An environment that changes what it returned before is found."""

import gymnasium
import numpy as np
import pytest
from counters import SLOTS, ArrayCounter, SingleCounter, drive
from gymnasium.vector import SyncVectorEnv

from kgverify.environments.adapters.open_environment import open_environment
from kgverify.environments.adapters.spec import EnvironmentSpec
from kgverify.environments.trajectory import Overwritten, StepKind
from kgverify.environments.verify import Comparing, compare_environments


class Reusing(ArrayCounter):
    """A counter whose functions write their results into buffers that they keep. reused: the names of the functions."""

    reused = ()

    def __init__(self):
        self.buffers = {}

    def _keep(self, name, values):
        if name not in self.reused:
            return values
        buffer = self.buffers.setdefault(name, np.zeros_like(values))
        buffer[:] = values
        return buffer

    def observe(self, state):
        return self._keep("observation", super().observe(state))

    def mask(self, state):
        return self._keep("mask", super().mask(state))

    def step(self, state, action):
        state, reward, *ends = super().step(state, action)
        if "action" in self.reused:
            action += 1
        return state, self._keep("reward", reward), *ends


def reuse(*names):
    return type("Reusing", (Reusing,), {"reused": names})


@pytest.mark.parametrize("name", ["observation", "mask", "reward", "action"])
def test_a_buffer_that_is_used_again_is_found_in_the_slots_that_change(name):
    rows, _, _ = drive(reuse(name))
    codes = rows.steps.overwritten
    assert (
        set(np.unique(codes)) == {0, Overwritten[name.upper()]} - ({0} if name == "action" else set())
        or name == "action"
    )
    assert not codes[rows.steps.kind == StepKind.RESET][0]
    assert (codes == Overwritten[name.upper()]).any()


def test_environments_that_return_new_arrays_change_nothing():
    assert not drive(ArrayCounter)[0].steps.overwritten.any()


def test_a_reset_that_overwrites_the_terminal_observation_is_found_in_its_row():
    rows, _, _ = drive(reuse("observation"))
    steps = rows.steps
    later = np.flatnonzero(steps.kind == StepKind.RESET)
    later = later[later > 0]
    assert (steps.overwritten[later] == Overwritten.OBSERVATION).any()


def test_declared_and_documented_reuse_is_accepted():
    assert not drive(EnvironmentSpec(reuse("observation"), reuses_buffers=True))[0].steps.overwritten.any()

    def make(num):
        return SyncVectorEnv([SingleCounter] * num, copy=False, autoreset_mode="SameStep")

    assert not drive(make)[0].steps.overwritten.any()


class _InPlace(gymnasium.Env):
    """A single environment that shows its own memory, as a reset that shares memory with the last observation does."""

    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Box(-99, 99, (1,), np.float32)

    def __init__(self):
        self.memory = np.zeros(1, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.memory[:] = 0
        return self.memory, {}

    def step(self, action):
        self.memory += 1
        return self.memory, 0.0, bool(self.memory[0] >= 4), False, {}


def test_a_final_observation_in_shared_memory_is_found():
    rows, _, _ = drive(lambda num: SyncVectorEnv([_InPlace] * num, autoreset_mode="SameStep"), steps=12)
    assert Overwritten.FINAL_OBSERVATION in rows.steps.overwritten


def test_setting_a_state_in_place_is_not_blamed_on_the_environment():
    def put(environment, state):
        environment.memory[:] = state

    spec = EnvironmentSpec(_InPlace, state=(lambda environment: environment.memory, put))
    environment = open_environment(spec, 2)
    environment.reset(np.arange(2))
    environment.set_states({"": np.full((2, 1), 2.0, np.float32)})
    assert environment.set_states({"": np.full((2, 1), 1.0, np.float32)}) is None
    called = environment.step(np.zeros(2, np.int64))
    assert (called.observed.overwritten == Overwritten.OBSERVATION).all()


def test_a_slot_that_is_not_reset_shows_the_reset_in_its_next_row():
    environment = open_environment(reuse("observation"), 2)
    environment.reset(np.array([3, 4]))
    environment.step(np.array([2, 2]))
    reset = environment.reset_slots(np.array([True, False])).overwritten
    called = environment.step(np.array([1, 1])).observed.overwritten
    assert reset.tolist() == [Overwritten.OBSERVATION, Overwritten.NOTHING]
    assert called.tolist() == [Overwritten.OBSERVATION, Overwritten.OBSERVATION]


def test_the_comparison_names_the_stage_and_what_is_overwritten():
    comparing = Comparing(slots=SLOTS, steps=40)
    report, _ = compare_environments(
        lambda num: open_environment(ArrayCounter, num),
        lambda num: open_environment(reuse("observation"), num),
        comparing,
    )
    first = report.divergences[0]
    assert (first.stage, first.field) == ("observe", "overwritten")
    assert first.actual == "the call changed the observation of the call before"
