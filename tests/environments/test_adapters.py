"""Every kind of environment gives the same rows for the same environment."""

import functools
import sys
from typing import ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from counters import (
    SLOTS,
    ArrayCounter,
    SingleCounter,
    StateRecord,
    TensorCounter,
    assert_same_rows,
    drive,
    parts,
)
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from kgverify.comparison.result import Verdict
from kgverify.environments.adapters.open_environment import open_environment
from kgverify.environments.adapters.spec import EnvironmentSpec
from kgverify.environments.protocol import Autoreset, Seeding
from kgverify.environments.verify import Comparing, compare_environments
from kgverify.errors import UserError

make_cartpole = functools.partial(gymnasium.make, "CartPole-v1", max_episode_steps=25)


@pytest.fixture(scope="module")
def cartpole():
    return drive(make_cartpole)


@pytest.mark.parametrize("mode", [*AutoresetMode, "SameStep"])
def test_a_vector_environment_gives_the_rows_of_single_ones_in_every_mode(cartpole, mode):
    expected, leader, _ = cartpole
    rows, _, run = drive(lambda num: SyncVectorEnv([make_cartpole] * num, autoreset_mode=mode), leader)
    assert run.environment.autoreset.value == AutoresetMode(mode).name.lower()
    assert expected.steps.truncated.any()
    assert expected.steps.terminated.any()
    assert_same_rows(expected, rows)


@pytest.mark.parametrize("mode", ["SameStep", "Disabled"])
def test_an_asynchronous_vector_environment_gives_the_same_rows(cartpole, mode):
    expected, leader, _ = cartpole

    def make(num):
        return AsyncVectorEnv([make_cartpole] * num, autoreset_mode=mode, context="fork")

    assert_same_rows(expected, drive(make, leader)[0])


@pytest.mark.parametrize("spec", ["gymnasium:CartPole-v1", gymnasium.make("CartPole-v1"), make_cartpole])
def test_an_environment_is_named_by_its_identifier_or_its_text(spec):
    assert open_environment(spec, 2).name in ("gymnasium:CartPole-v1", "CartPole-v1")


def test_a_batched_environment_gives_the_same_rows_on_arrays_and_on_tensors():
    expected, leader, run = drive(ArrayCounter)
    rows, _, other = drive(TensorCounter(), leader, lockstep=True)
    assert expected.steps.truncated.any()
    assert expected.steps.terminated.any()
    assert_same_rows(expected, rows)
    assert run.dtypes == other.dtypes
    assert run.names["states"] == ["state.at", "state.steps"]


@pytest.mark.parametrize("shows", ["info", "observation"])
@pytest.mark.parametrize("autoreset", ["SameStep", "NextStep", "Disabled", None])
def test_masks_are_read_from_infos_and_from_observations(shows, autoreset):
    make = functools.partial(SingleCounter, shows)
    expected, leader, run = drive(EnvironmentSpec(functools.partial(SingleCounter, "info")))
    spec = make if autoreset is None else lambda num: SyncVectorEnv([make] * num, autoreset_mode=autoreset)
    rows, _, other = drive(spec, leader)
    assert set(run.names) == {"observations", "masks", "actions"} == set(other.names)
    assert_same_rows(expected, rows)


def test_a_seed_for_each_episode_lets_a_single_environment_follow_a_batched_one():
    expected, leader, _ = drive(TensorCounter)
    spec = EnvironmentSpec(SingleCounter, seeds="episode", state="state")
    rows, _, run = drive(spec, leader)
    assert run.environment.seeding is Seeding.EPISODE
    assert_same_rows(expected, rows)


@pytest.mark.parametrize("mode", ["NextStep", "Disabled", None])
def test_states_of_named_attributes_are_read_and_set(cartpole, mode):
    names = ("state", "_elapsed_steps")
    make = make_cartpole if mode is None else lambda num: SyncVectorEnv([make_cartpole] * num, autoreset_mode=mode)
    environment = open_environment(EnvironmentSpec(make, state=names), SLOTS)
    environment.reset(np.arange(SLOTS))
    actions = np.ones(SLOTS, np.int64)
    before = environment.step(actions).observed.states
    after = environment.step(actions).observed.states
    environment.set_states(before)
    again = environment.step(actions).observed.states
    assert set(after) == set(names)
    for name in names:
        np.testing.assert_array_equal(after[name], again[name])
        assert (before[name] != after[name]).any()


def _compare(expected, actual, **options):
    makes = [lambda num, spec=spec: open_environment(spec, num) for spec in (expected, actual)]
    return compare_environments(*makes, Comparing(slots=SLOTS, steps=60, **options))[0]


@pytest.mark.parametrize("mode", AutoresetMode)
def test_states_are_set_in_every_mode(mode):
    specs = [
        EnvironmentSpec(make, state=("state", "_elapsed_steps"))
        for make in (make_cartpole, lambda num: SyncVectorEnv([make_cartpole] * num, autoreset_mode=mode))
    ]
    report = _compare(*specs)
    assert report.lockstep
    assert report.verdict is Verdict.AGREE


def test_sides_that_begin_differently_are_compared_only_from_the_same_states():
    make = functools.partial(gymnasium.make_vec, "CartPole-v1", vectorization_mode="vector_entry_point")
    state = (lambda each: each.unwrapped.state.T, lambda each, new: setattr(each.unwrapped, "state", new.T))
    vector = EnvironmentSpec(make, seeds="own", state=state)
    with pytest.raises(UserError, match="different ways: slot and own"):
        _compare(make_cartpole, vector)
    report = _compare(EnvironmentSpec(gymnasium.make("CartPole-v1"), state="state"), vector)
    assert report.verdict is Verdict.AGREE
    assert any("what a reset returned" in note for note in report.notes)


def test_states_of_other_names_are_refused():
    other = EnvironmentSpec(SingleCounter, seeds="episode", state="state")
    with pytest.raises(UserError, match="different parts: one array and at, steps") as raised:
        _compare(other, ArrayCounter)
    assert "lockstep" in raised.value.fix


def test_states_are_set_by_a_pair_of_functions_where_an_environment_seeds_itself():
    make = functools.partial(gymnasium.make_vec, "CartPole-v1", vectorization_mode="vector_entry_point")
    state = (lambda each: each.unwrapped.state.T, lambda each, new: setattr(each.unwrapped, "state", new.T))
    environment = open_environment(EnvironmentSpec(make, state=state, seeds="own"), 3)
    environment.reset(np.arange(3))
    environment.set_states({"": np.full((3, 4), 0.01)})
    observed = environment.step(np.ones(3, np.int64)).observed
    assert (observed.leaves[""] == observed.leaves[""][0]).all()


@pytest.mark.parametrize("counter", [ArrayCounter, TensorCounter])
@pytest.mark.parametrize(
    "make_state", [StateRecord, lambda at, steps: {"at": at, "steps": steps}], ids=["record", "dict"]
)
def test_states_that_are_set_keep_structure_and_types(counter, make_state):
    seen = []

    class Counter(counter):
        def step(self, state, action):
            seen.append((type(state), [each.dtype for each in parts(state)]))
            return super().step(state, action)

    Counter.make_state = staticmethod(make_state)
    environment = open_environment(Counter, 3)
    states = environment.reset(np.arange(3)).states
    actions = np.ones(3, np.int64)
    environment.step(actions)
    environment.set_states({"at": states["at"] + 1, "steps": states["steps"].astype(np.float64)})
    assert environment.step(actions).observed.states["at"].tolist() == [1, 2, 3]
    assert seen[0] == seen[1]


def test_a_batched_environment_takes_the_rows_of_the_users_queries():
    seen = []

    class Listening(TensorCounter):
        def reset(self, queries):
            seen.append(queries.tolist())
            return super().reset(queries[:, 0])

    queries = torch.arange(20).reshape(10, 2)
    environment = open_environment(EnvironmentSpec(Listening, queries=queries), 3)
    environment.reset(np.array([0, 4, 12]))
    environment.reset_slots(np.array([True, False, False]))
    assert seen[0] == [[0, 1], [8, 9], [4, 5]]
    assert seen[1][0] == [6, 7]
    assert seen[1][1:] == seen[0][1:]


class _Own(TensorCounter):
    """A counter that begins the next episode itself, and tells the last observation in its info."""

    autoreset = "same_step"
    final = "final_obs"

    def step(self, state, action):
        state, reward, terminated, truncated = super().step(state, action)
        ends = terminated | truncated
        fresh = self.make_state(torch.zeros_like(state.at), torch.zeros_like(state.steps))
        merged = self.make_state(*(torch.where(ends, new, old) for new, old in zip(fresh[:2], state[:2], strict=True)))
        return (
            merged,
            reward,
            ends,
            {"terminated": terminated, "truncated": truncated, self.final: self.observe(state)},
        )


@pytest.mark.parametrize("final", ["final_obs", "final_observation"])
def test_a_batched_environment_may_reset_itself(final):
    expected, leader, _ = drive(EnvironmentSpec(SingleCounter, seeds="slot"))
    rows, _, _ = drive(type("Own", (_Own,), {"final": final}), leader)
    assert expected.steps.terminated.any()
    assert_same_rows(expected._replace(states=rows.states), rows, {"num_states"})


class _TensorVector:
    """A vectorised environment on tensors with the interface of Gymnasium, as simulators on devices have it."""

    metadata: ClassVar = {}
    single_action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, num_envs):
        self.num_envs = num_envs

    def reset(self, *, seed=None, options=None):
        return {"policy": torch.full((self.num_envs, 2), float(seed))}, {}

    def step(self, action):
        assert action.dtype == torch.float32
        flags = torch.zeros(self.num_envs, dtype=torch.bool)
        return {"policy": action * 2}, action[:, 0], flags, flags, {}


def test_a_vector_environment_on_tensors_takes_tensors():
    environment = open_environment(EnvironmentSpec(_TensorVector, autoreset="same_step", seeds="run"), 3)
    assert environment.reset(np.array([4, 9, 2])).leaves["policy"].tolist() == [[4, 4]] * 3
    called = environment.step(np.full((3, 2), 0.5))
    assert called.observed.leaves["policy"].tolist() == [[1, 1]] * 3
    assert called.reward.tolist() == [0.5] * 3


def test_an_environment_is_loaded_from_a_file(tmp_path):
    file = tmp_path / "counting.py"
    file.write_text("from counters import SingleCounter as Counting\n")
    environment = open_environment(f"{file}:Counting", 2)
    assert environment.num_slots == 2
    with pytest.raises(UserError, match="has no 'Countin'") as raised:
        open_environment(f"{file}:Countin", 2)
    assert raised.value.fix == "did you mean 'Counting'?"


SPACES = [
    gymnasium.spaces.Discrete(3, start=2),
    gymnasium.spaces.MultiDiscrete([2, 5]),
    gymnasium.spaces.MultiBinary(4),
    gymnasium.spaces.Box(-1, 2, (2, 2), np.float32),
]


class _Taking(gymnasium.Env):
    """An environment that checks that its actions belong to its space."""

    observation_space = gymnasium.spaces.Discrete(3)

    def __init__(self, space):
        self.action_space = space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        assert action in self.action_space, action
        return 0, 1, False, False, {}


@pytest.mark.parametrize("space", SPACES, ids=lambda space: type(space).__name__)
@pytest.mark.parametrize("is_vector", [False, True])
def test_drawn_actions_belong_to_the_space(space, is_vector):
    make = functools.partial(_Taking, space)
    drive((lambda num: SyncVectorEnv([make] * num, autoreset_mode="Disabled")) if is_vector else make, steps=4)


@pytest.mark.parametrize("space", [gymnasium.spaces.Text(3), gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(2)])])
def test_a_space_of_other_actions_is_refused(space):
    with pytest.raises(UserError, match=type(space).__name__) as raised:
        open_environment(lambda: _Taking(space), 2)
    assert "wrap others" in raised.value.fix


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (7, "int: expected an environment"),
        (lambda: 7, "without reset and step"),
        (lambda one, two: 7, "it takes one, two"),
        ("CartPole", "cannot make the object"),
        ("gymnasium:CartPole-v77", "v77: raised"),
        (lambda: SyncVectorEnv([make_cartpole] * 3), "has 3 slots, expected 2"),
        (EnvironmentSpec(ArrayCounter, autoreset="same_step", seeds="episode"), "takes no seeds"),
        (EnvironmentSpec(ArrayCounter, actions="many"), "cannot draw actions"),
    ],
)
def test_what_cannot_be_opened_is_refused_with_a_fix(spec, text):
    with pytest.raises(UserError, match=text) as raised:
        open_environment(spec, 2)
    assert raised.value.fix


def test_an_environment_must_tell_what_follows_an_end():
    class Silent(ArrayCounter):
        autoreset = None

    with pytest.raises(UserError, match="does not tell") as raised:
        open_environment(Silent, 2)
    assert "autoreset=" in raised.value.fix
    assert open_environment(EnvironmentSpec(Silent, autoreset="next_step"), 2).autoreset is Autoreset.NEXT_STEP


def test_an_environment_that_cannot_be_copied_is_refused():
    environment = SingleCounter()
    environment.lock = sys._getframe()
    with pytest.raises(UserError, match="cannot be copied") as raised:
        open_environment(environment, 2)
    assert "a function that makes it" in raised.value.fix


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"autoreset": "sometimes"}, "autoreset"),
        ({"seeds": "all"}, "seeds"),
        ({"state": 7}, "state"),
        ({"state": ()}, "state"),
        ({"reward_dtype": "int8"}, "reward_dtype"),
        ({"queries": 7}, "queries"),
    ],
)
def test_a_wrong_setting_is_refused(options, where):
    with pytest.raises(UserError) as raised:
        EnvironmentSpec(ArrayCounter, **options)
    assert raised.value.where == where
    assert raised.value.fix


def test_an_exception_of_the_environment_names_the_environment_and_the_line():
    class Failing(ArrayCounter):
        def step(self, state, action):
            raise ValueError("no such edge")

    environment = open_environment(Failing, 2)
    environment.reset(np.arange(2))
    with pytest.raises(UserError, match="Failing: step: raised ValueError: no such edge"):
        environment.step(np.zeros(2, np.int64))


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"observe": lambda self, state: np.zeros((3, 2))}, "expected 2 rows"),
        ({"observe": lambda self, state: np.array(["a", "b"])}, "expected numbers"),
        ({"mask": lambda self, state: np.zeros((2, 5), bool)}, "the mask has the shape"),
        ({"step": lambda self, state, action: state}, "returned a value of type State"),
        ({"step": lambda self, state, action: (state, np.zeros((2, 3)), state.at > 0)}, "one number for each"),
    ],
)
def test_results_of_a_wrong_shape_are_refused(changed, text):
    with pytest.raises(UserError, match=text):
        drive(type("Wrong", (ArrayCounter,), changed), num_slots=2, steps=1)


def test_the_type_of_rewards_may_be_declared():
    environment = open_environment(EnvironmentSpec(SingleCounter, reward_dtype="float32"), 2)
    environment.reset(np.arange(2))
    assert environment.step(np.zeros(2, np.int64)).reward.dtype == np.float32
