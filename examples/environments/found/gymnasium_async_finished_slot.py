"""gymnasium 1.4.0: AsyncVectorEnv with autoreset disabled steps a finished environment.

Expected: an error, as from SyncVectorEnv. The change that added the mode, Gymnasium#1227: it "raises an error if a step
function is called on a sub-environment that has terminated or truncated without being partially reset".
Found: the worker asserts `autoreset is False`, but sets `autoreset` only in the mode NextStep. The steps after the end
of the episode are returned as further transitions.
"""

import sys

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv


def make():
    return gym.make("CartPole-v1", max_episode_steps=2)


def count_steps(vector):
    """Return the number of steps that the vector takes before it raises, at most 5."""
    vector.reset(seed=0)
    for steps in range(5):
        try:
            vector.step(np.array([0]))
        except AssertionError:
            return steps
    return 5


if __name__ == "__main__":
    mode = "Disabled"
    expected = count_steps(SyncVectorEnv([make], autoreset_mode=mode))
    found = count_steps(AsyncVectorEnv([make], autoreset_mode=mode))
    print("expected:", expected, "steps, then an error, since episodes end after 2")
    print("found:", found, "steps")
    sys.exit(expected != found)
