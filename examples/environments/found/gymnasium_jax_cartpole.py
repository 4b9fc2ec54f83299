"""gymnasium 1.4.0: phys2d/CartPole-v1 adds the length of the pole to its mass instead of multiplying them.

Expected: the transition of CartPole-v1, whose parameters the class has; there, and in the paper that both cite,
`polemass_length` is the mass of the pole times its length, 0.1 * 0.5.
Found: `polemass_length: float = masspole + length`. The cart accelerates 1.7 times as fast.
"""

import sys

import gymnasium as gym
import jax.numpy as jnp
import numpy as np

functional = gym.make("phys2d/CartPole-v1").unwrapped
classic = gym.make("CartPole-v1").unwrapped
state = np.array([0.0, 0.0, 0.02, 0.0])
classic.reset(seed=0)
classic.state = state.copy()
functional.reset(seed=0)
functional.state = jnp.array(state)
expected, found = classic.step(1)[0], np.asarray(functional.step(1)[0])
print("expected:", expected.tolist())
print("found:", found.tolist())
sys.exit(not np.allclose(expected, found, atol=1e-4))
