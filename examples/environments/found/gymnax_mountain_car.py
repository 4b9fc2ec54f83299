"""gymnax 1.0.1: the car of MountainCarContinuous-v0 keeps its speed when it hits the left wall.

Expected: the speed 0 at the position -1.2, as in gymnasium's MountainCarContinuous-v0 and gymnax's own MountainCar-v0.
Found: the line that stops the car compares with `goal_position` instead of `min_position`. The car sticks to the wall
until its motor has worked off the speed.
"""

import sys

import gymnasium as gym
import gymnax
import jax
import jax.numpy as jnp
import numpy as np

start = {"position": -1.19, "velocity": -0.05}
single = gym.make("MountainCarContinuous-v0").unwrapped
single.reset(seed=0)
single.state = np.array(list(start.values()))
expected = single.step(np.array([0.0]))[0]

env, params = gymnax.make("MountainCarContinuous-v0")
_, state = env.reset_env(jax.random.key(0), params)
state = state.replace(**{name: jnp.array(value) for name, value in start.items()})
found = np.asarray(env.step_env(jax.random.key(0), state, jnp.array([0.0]), params)[0])
print("expected:", expected.tolist())
print("found:", found.tolist())
sys.exit(not np.allclose(expected, found, atol=1e-4))
