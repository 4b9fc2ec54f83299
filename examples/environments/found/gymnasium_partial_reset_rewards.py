"""gymnasium 1.4.0: the vector wrapper NormalizeReward forgets the returns of running episodes when another slot is reset.

Known: Gymnasium#1696, open.
Expected: a partial reset clears the discounted return of the slots in the mask. NormalizeObservation refuses such resets.
Found: `reset` clears the returns of all slots; later rewards of slot 1 are divided by another number.
"""

import sys

import gymnasium as gym
import numpy as np
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers.vector import NormalizeReward

makers = [lambda: gym.make("Pendulum-v1", max_episode_steps=2), lambda: gym.make("Pendulum-v1", max_episode_steps=9)]
vector = NormalizeReward(SyncVectorEnv(makers, autoreset_mode="Disabled"))
vector.reset(seed=0)
actions = np.zeros((2, 1), np.float32)
vector.step(actions)
vector.step(actions)
before = vector.accumulated_reward[1]
vector.reset(options={"reset_mask": np.array([True, False])})
print("expected:", before)
print("found:", vector.accumulated_reward[1])
sys.exit(bool(before != vector.accumulated_reward[1]))
