"""gymnasium 1.4.0: FunctionalJaxVectorEnv resets an environment once more in the first step after `reset`.

Expected: `reset` begins new episodes, and each first step continues from the observation that it returned.
Found: `reset` clears `steps`, but not `prev_done`. A slot that had just finished is reset again by the first step, and
the transition from the first observation into an unrelated one is returned with the reward 1.
"""

import sys

import gymnasium as gym
import jax.numpy as jnp
import numpy as np


def first_step(is_finished):
    """Return the change of the observation in the first step after `reset`."""
    vector = gym.make_vec("phys2d/CartPole-v1", num_envs=1, max_episode_steps=3)
    vector.reset(seed=0)
    for _ in range(3 if is_finished else 2):
        vector.step(jnp.array([1]))
    before, _ = vector.reset(seed=1)
    return np.asarray(vector.step(jnp.array([1]))[0] - before)[0].tolist()


expected, found = first_step(False), first_step(True)
print("expected:", expected)
print("found:", found)
sys.exit(expected != found)
