"""Small environments of every interface: a counter that starts at its seed modulo 7, and ends above 5 or after 20 steps."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch

from kgverify.environments.adapters.open_environment import open_environment
from kgverify.environments.drive import Drive, Follower, Leader, Plan
from kgverify.environments.protocol import RandomPolicy

SLOTS = 5


class State(NamedTuple):
    """A counter of each slot. unused: a part without numbers."""

    at: Any
    steps: Any
    unused: Any = None


@dataclass(frozen=True)
class StateRecord:
    """The same as a dataclass."""

    at: Any
    steps: Any


def parts(state):
    """Return the counter and the steps of a state of any structure."""
    return (state["at"], state["steps"]) if isinstance(state, dict) else (state.at, state.steps)


class ArrayCounter:
    """A batched counter on NumPy arrays; the caller resets it."""

    num_actions = 3
    autoreset = "disabled"
    make_state: Any = State

    def reset(self, queries):
        return self.make_state((queries % 7).astype(np.int32), np.zeros(len(queries), np.float32))

    def step(self, state, action):
        at, steps = parts(state)
        at, steps = (at + action - 1).astype(np.int32), steps + np.float32(1)
        return self.make_state(at, steps), at.astype(np.float32), at > 5, steps >= 20

    def observe(self, state):
        at, steps = parts(state)
        return np.stack((at.astype(np.float32), steps), axis=1)

    def mask(self, state):
        at, _ = parts(state)
        return np.stack((at > 0, at >= 0, np.ones(len(at), bool)), axis=1)


class TensorCounter(ArrayCounter):
    """The same on tensors."""

    def reset(self, queries):
        return self.make_state(torch.as_tensor(queries % 7).int(), torch.zeros(len(queries)))

    def step(self, state, action):
        at, steps = parts(state)
        assert action.dtype == torch.int64
        assert at.dtype == torch.int32
        at, steps = (at + action - 1).int(), steps + 1
        return self.make_state(at, steps), at.float(), at > 5, steps >= 20

    def observe(self, state):
        at, steps = parts(state)
        return torch.stack((at.float(), steps), dim=1)

    def mask(self, state):
        at, _ = parts(state)
        return torch.stack((at > 0, at >= 0, torch.ones(len(at), dtype=torch.bool)), dim=1)


class SingleCounter(gymnasium.Env):
    """The same as a single environment of Gymnasium. shows: how it shows its mask, `info`, `observation` or ``."""

    def __init__(self, shows="info"):
        self.shows = shows
        self.action_space = gymnasium.spaces.Discrete(3)
        space = gymnasium.spaces.Box(-99, 99, (2,), np.float32)
        mask = gymnasium.spaces.MultiBinary(3)
        self.observation_space = (
            gymnasium.spaces.Dict({"observation": space, "action_mask": mask}) if shows == "observation" else space
        )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = [seed % 7 if seed is not None else 0, 0]
        return self._show()

    def step(self, action):
        self.state = [self.state[0] + int(action) - 1, self.state[1] + 1]
        observation, info = self._show()
        return observation, float(self.state[0]), self.state[0] > 5, self.state[1] >= 20, info

    def _show(self):
        observation = np.array(self.state, np.float32)
        mask = np.array([self.state[0] > 0, self.state[0] >= 0, True], np.int8)
        if self.shows == "observation":
            return {"observation": observation, "action_mask": mask}, {}
        return observation, {"action_mask": mask} if self.shows else {}


def drive(spec, leader=None, *, num_slots=SLOTS, steps=60, lockstep=False):
    """Drive an environment with random actions, or with those of a leader; return the rows, the leader and the drive."""
    plan = Plan(np.arange(num_slots) + 3, steps)
    environment = open_environment(spec, num_slots)
    try:
        leads = leader or Leader(RandomPolicy(environment.actions, plan.seeds.tolist()), num_slots)
        run = Drive(environment, plan, Follower(leader, lockstep=lockstep) if leader else leads)
        return run.run(), leads, run
    finally:
        environment.close()


def assert_same_rows(expected, actual, ignored=()):
    """Assert that two trajectories have the same rows, except some columns."""
    for one, two in zip(expected, actual, strict=True):
        for name in one._fields:
            if name not in ignored:
                np.testing.assert_array_equal(getattr(one, name), getattr(two, name), err_msg=name)
