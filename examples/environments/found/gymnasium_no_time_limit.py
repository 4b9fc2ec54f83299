"""gymnasium 1.4.0: `make_vec("CartPole-v1", max_episode_steps=-1)` truncates every episode after one step.

Expected: no time limit, as from `make` and from `make_vec` with `vectorization_mode="sync"`. The documentation of `make`:
"Using max_episode_steps=-1 will not apply the wrapper to the environment."
Found: CartPoleVectorEnv, the default for CartPole, gets -1 as it is and compares `steps >= -1`.
"""

import sys

import gymnasium as gym
import numpy as np

seen = {}
for name, mode in (("expected:", "sync"), ("found:", None)):
    vector = gym.make_vec("CartPole-v1", num_envs=1, vectorization_mode=mode, max_episode_steps=-1)
    vector.reset(seed=0)
    seen[name] = [bool(vector.step(np.array([step % 2]))[3][0]) for step in range(4)]
    print(name, "truncated", seen[name])
sys.exit(seen["expected:"] != seen["found:"])
