"""torchrl 0.14.1: with `frame_skip`, the end of one slot of a vectorized environment drops frames of all others.

Known: foreseen in the review of pytorch/rl#1519.
Expected: each slot takes `frame_skip` frames in a step, unless its own episode ends; SerialEnv of the same environments
does so.
Found: `read_done` says to stop if `done.any()`, for all slots at once.
"""

import sys

import gymnasium as gym
import torch
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import TimeAwareObservation
from torchrl.envs import GymWrapper, SerialEnv


def make(limit):
    env = TimeAwareObservation(gym.make("Pendulum-v1", max_episode_steps=limit))
    return gym.wrappers.TransformObservation(env, lambda seen: seen[-1:], gym.spaces.Box(0, 100, (1,), float))


def observe(env):
    """Return the time of both slots after one step."""
    data = env.reset()
    return env.step(data.set("action", torch.zeros(2, 1)))["next", "observation"].flatten().tolist()


makers = [lambda: make(1), lambda: make(9)]
expected = observe(SerialEnv(2, [lambda make=make: GymWrapper(make(), frame_skip=4) for make in makers]))
found = observe(
    GymWrapper(SyncVectorEnv(makers, observation_mode="different", autoreset_mode="Disabled"), frame_skip=4)
)
print("expected:", expected)
print("found:", found)
sys.exit(expected != found)
