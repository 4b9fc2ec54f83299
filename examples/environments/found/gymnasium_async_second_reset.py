"""gymnasium 1.4.0: AsyncVectorEnv without shared memory resets a second time after `reset` at the end of an episode.

Expected: what SyncVectorEnv returns: `reset` begins an episode, and the step after it is the first step of it. The
documentation of `shared_memory` names no other effect than speed.
Found: the worker clears its flag `autoreset` only inside of `if shared_memory:`. The first step after the reset
ignores its action, resets again, and returns the reward 0 as if it were a transition.
"""

import sys

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv


def make():
    return gym.make("FrozenLake-v1", is_slippery=False)


def restart(vector):
    """Fall into a hole, reset, and walk: the observation and the end of each step."""
    vector.reset(seed=0)
    for action in (2, 1):  # right, down: the hole at 5
        vector.step(np.array([action]))
    vector.reset(seed=0)
    observations = [vector.step(np.array([action]))[0].tolist() for action in (2, 2, 1)]
    vector.close()
    return observations


if __name__ == "__main__":
    expected, found = restart(SyncVectorEnv([make])), restart(AsyncVectorEnv([make], shared_memory=False))
    print("expected:", expected)
    print("found:", found)
    sys.exit(expected != found)
