"""torchrl 0.14.1: GymWrapper ignores `start` of a Discrete space, and sends actions that the environment does not have.

Expected: a random action of `Discrete(3, start=5)` is 5, 6 or 7, as gymnasium documents the space: "{start, ..., start+n-1}".
Found: the spec is that of `Discrete(3)`, and the environment gets 0, 1 or 2. An environment that does not check its
actions does something else, without an error. Spaces of observations and MultiDiscrete lose their `start` as well.
"""

import sys

import gymnasium as gym
from gymnasium import spaces
from torchrl.envs import GymWrapper


class Echo(gym.Env):
    observation_space = spaces.Box(-10, 10, (1,), float)
    action_space = spaces.Discrete(3, start=5)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample() * 0 + action, 0.0, False, False, {}


env = GymWrapper(Echo(), categorical_action_encoding=True)
actions = env.rollout(20)["next", "observation"].flatten().tolist()
print("expected: actions of", Echo.action_space)
print("found:", sorted({int(action) for action in actions}))
sys.exit(not all(Echo.action_space.contains(int(action)) for action in actions))
