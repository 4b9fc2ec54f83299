"""gymnasium 1.4.0: when FunctionalJaxVectorEnv resets one slot, all others lose that step.

Expected: a slot that runs moves in each step; the mode NextStep ignores only the action of the slot that it resets.
Found: the state after the reset is `self.state.at[to_reset].set(...)`, of the state before the step, instead of
`next_state.at[...]`. The others repeat their observation, although their actions were taken and rewarded.
"""

import sys

import gymnasium as gym
import jax.numpy as jnp
import numpy as np

vector = gym.make_vec("phys2d/CartPole-v1", num_envs=2)
observations, _ = vector.reset(seed=0)
finished = np.zeros(2, bool)
print("expected: cart and pole of slot 1 move in each step")
frozen = False
for step in range(30):
    before, slot_0_resets = np.asarray(observations), finished[0] and not finished[1]
    observations, _, terminated, truncated, _ = vector.step(jnp.array([1, step % 2]))  # slot 0 falls, slot 1 balances
    finished = np.asarray(terminated | truncated)
    if slot_0_resets and np.array_equal(before[1], np.asarray(observations)[1]):
        print(f"found: slot 1 stays at {before[1].tolist()} in step {step}, where slot 0 is reset")
        frozen = True
        break
sys.exit(frozen)
