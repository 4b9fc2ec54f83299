"""gymnasium 1.4.0: AsyncVectorEnv never reads an observation of a Text or OneOf space again.

Expected: what SyncVectorEnv returns; the documentation of AsyncVectorEnv says that `shared_memory=True`, the default,
communicates the observations "back through shared variables".
Found: `self.observations` is read from the shared memory once, in the constructor. Arrays are views and follow it; the
strings of a Text space and the pairs of a OneOf space are copies, so each step returns those of before the first reset.
"""

import sys

import gymnasium as gym
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv


class Counter(gym.Env):
    observation_space = spaces.Text(1, charset="0123456789")
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return "0", {}

    def step(self, action):
        self.steps += 1
        return str(self.steps), 1.0, False, False, {}


if __name__ == "__main__":
    seen = {}
    for name, vector in (("expected:", SyncVectorEnv([Counter])), ("found:", AsyncVectorEnv([Counter]))):
        seen[name] = [vector.reset()[0], *(vector.step([0])[0] for _ in range(3))]
        print(name, seen[name])
        vector.close()
    sys.exit(seen["expected:"] != seen["found:"])
