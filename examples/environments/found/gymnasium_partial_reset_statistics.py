"""gymnasium 1.4.0: RecordEpisodeStatistics forgets the running episodes when another slot is reset.

Known: Gymnasium#1696, open.
Expected: `reset(options={"reset_mask": mask})` clears the statistics of the slots in the mask; the wrapper has code for it.
Found: SyncVectorEnv pops "reset_mask" from the caller's options, the wrapper looks for it afterwards, and clears all.
"""

import sys

import gymnasium as gym
import numpy as np
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

makers = [lambda: gym.make("Pendulum-v1", max_episode_steps=2), lambda: gym.make("Pendulum-v1", max_episode_steps=3)]
vector = RecordEpisodeStatistics(SyncVectorEnv(makers, autoreset_mode="Disabled"))
vector.reset(seed=0)
actions = np.zeros((2, 1), np.float32)
vector.step(actions)
vector.step(actions)
vector.reset(options={"reset_mask": np.array([True, False])})
length = vector.step(actions)[4]["episode"]["l"][1]
print("expected: slot 1 ends after 3 steps")
print("found:", length)
sys.exit(bool(length != 3))
