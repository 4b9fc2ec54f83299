"""stable-baselines3 2.9.2: `reset` of VecFrameStack overwrites observations that it returned before.

Expected: an observation stays as it was, as those of DummyVecEnv, which returns copies.
Found: VecFrameStack returns its buffer `stacked_obs`, and `reset` clears it in place: the last observation of a rollout
becomes the first of the next episode, and two resets return the same array.
"""

import sys

import gymnasium as gym
import numpy as np
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack

vector = VecFrameStack(DummyVecEnv([lambda: gym.make("CartPole-v1")]), 2)
vector.seed(0)
vector.reset()
observation, _, _, _ = vector.step([1])
before = observation.copy()
vector.reset()
print("expected:", before.tolist())
print("found:", observation.tolist())
sys.exit(not np.array_equal(observation, before))
