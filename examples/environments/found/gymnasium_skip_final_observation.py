"""gymnasium 1.4.0: MaxAndSkipObservation returns an old observation if an episode ends before its last skipped step.

Known: Gymnasium#1692, open.
Expected: the largest of the last two observations, as the documentation says: here that of time 5, the last one.
Found: the buffer is written in the last two of `skip` steps only. The episode ends in the first of them, and the final
observation, from which a truncated episode is bootstrapped, is that of the step before.
"""

import sys

import gymnasium as gym
from gymnasium.wrappers import MaxAndSkipObservation, TimeAwareObservation

env = TimeAwareObservation(gym.make("Pendulum-v1", max_episode_steps=5), flatten=False)
env = gym.wrappers.TransformObservation(env, lambda seen: seen["time"], env.observation_space["time"])
env = MaxAndSkipObservation(env, skip=4)
env.reset(seed=0)
env.step([0.0])
observation, _, _, truncated, _ = env.step([0.0])
print("expected: [5] truncated")
print("found:", observation.tolist(), "truncated" if truncated else "running")
sys.exit(observation.tolist() != [5])
