"""Walks on a line, right and wrong, as the tests of the command and of the public names drive them. They need NumPy only."""

import numpy as np

import kgverify as kv


class Walk:
    """Walks left or right from a place that the seed gives; terminated beyond 3, truncated after 8 steps.

    part: the name of its observation; reward: that of the end; late: the steps by which it is truncated too late
    """

    def __init__(self, part="at", reward=1.0, late=0):
        self.part, self.reward, self.late = part, reward, late

    def reset(self, seeds):
        return {self.part: (seeds % 3).astype(np.float32), "steps": np.zeros(len(seeds), np.int64)}

    def step(self, state, action):
        at, steps = state[self.part] + np.where(action > 0, 1, -1).astype(np.float32), state["steps"] + 1
        terminated = np.abs(at) > 3
        truncated = ~terminated & (steps >= 8 + self.late)
        return {self.part: at, "steps": steps}, np.where(terminated, self.reward, 0.0), terminated, truncated


def declare(name="", **options):
    return kv.EnvironmentSpec(Walk(**options), autoreset="disabled", actions=2, name=name)


right = declare()
other_reward = declare(reward=2.0)
late = declare(late=1)


class Raises(Walk):
    def step(self, state, action):
        raise ValueError("no \x1b[5m step\n::error::FORGED")


class NaNs(Walk):
    def step(self, state, action):
        state, reward, *ends = super().step(state, action)
        return state, np.full_like(reward, np.nan), *ends


class FewRows(Walk):
    def step(self, state, action):
        state, *rest = super().step(state, action)
        return {name: each[:-1] for name, each in state.items()}, *rest


class OtherShape(Walk):
    def step(self, state, action):
        state, reward, *ends = super().step(state, action)
        return state, np.stack((reward, reward)), *ends


class Objects(Walk):
    def reset(self, seeds):
        return super().reset(seeds) | {"who": np.array([None] * len(seeds), object)}


class Huge(Walk):
    """Shows 1,000 numbers. In the third step, the last one is wrong."""

    def observe(self, state):
        shown = np.repeat(state[self.part][:, None], 1_000, axis=1)
        shown[state["steps"] == 3, -1] += self.reward - 1.0
        return shown


class CannotClose(Walk):
    def close(self):
        raise ValueError("cannot be closed")


hostile = {
    each.__name__: kv.EnvironmentSpec(each(), autoreset="disabled", actions=2)
    for each in (Raises, FewRows, OtherShape, Objects)
}
raises, few_rows, other_shape, objects = hostile.values()


class MovedResets(Walk):
    """Begins later episodes one place further: their seeds are large."""

    def reset(self, seeds):
        state = super().reset(seeds)
        state[self.part] += np.where(seeds > 100, 1, 0).astype(np.float32)
        return state
