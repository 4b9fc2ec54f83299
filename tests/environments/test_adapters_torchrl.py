"""Environments of torchrl give the rows of the same environments of Gymnasium."""

import functools
from importlib import import_module

import gymnasium
import numpy as np
import pytest
from counters import SLOTS, assert_same_rows, drive

from kgverify.environments.adapters.open_environment import open_environment
from kgverify.environments.protocol import Seeding

# Importing torchrl takes seconds.
pytestmark = pytest.mark.deep


@pytest.fixture(scope="module")
def torchrl():
    pytest.importorskip("torchrl")
    return import_module("torchrl_counter")


@pytest.fixture(scope="module")
def cartpole():
    return drive(functools.partial(gymnasium.make, "CartPole-v1", max_episode_steps=25))


@pytest.mark.parametrize("kind", ["one-hot", "categorical", "batched"])
def test_an_environment_of_torchrl_gives_the_rows_of_gymnasium(torchrl, cartpole, kind):
    make = functools.partial(
        torchrl.GymEnv, "CartPole-v1", max_episode_steps=25, categorical_action_encoding=kind == "categorical"
    )
    rows, _, run = drive((lambda num: torchrl.SerialEnv(num, make)) if kind == "batched" else make, cartpole[1])
    assert run.environment.seeding is Seeding.SLOT
    assert_same_rows(cartpole[0], rows)


def test_a_bounded_action_is_drawn(torchrl):
    environment = open_environment(lambda: torchrl.GymEnv("Pendulum-v1"), 2)
    assert (environment.actions.low, environment.actions.high) == (-2, 2)
    environment.reset(np.arange(2))
    assert environment.step(np.array([[1.0], [2.0]], np.float32)).reward.shape == (2,)


def test_an_environment_that_keeps_its_state_in_the_tensordict_shows_it_and_its_mask(torchrl):
    rows, _, run = drive(torchrl.StatelessCounter)
    environment = run.environment
    assert environment.has_states
    assert environment.seeding is Seeding.RUN
    assert run.names["masks"] == ["mask[0]", "mask[1]", "mask[2]"]
    assert rows.steps.terminated.any()
    environment.reset(np.arange(SLOTS))
    environment.set_states({"at": np.arange(SLOTS, dtype=np.float32)})
    assert environment.step(np.full(SLOTS, 2)).reward.tolist() == [1, 2, 3, 4, 5]


def test_a_batch_of_torchrl_that_has_not_started_is_closed_without_an_error(torchrl):
    open_environment(lambda num: torchrl.SerialEnv(num, lambda: torchrl.GymEnv("CartPole-v1")), 2).close()
