"""gymnasium 1.4.0: a vector environment rounds a float in `info` to an int if an earlier slot reports an int.

Expected: the values of the environments, 0 and 0.5; `info` of slot i is the info of environment i.
Found: `VectorEnv._add_info` creates the array with the type of the first value it sees, here int, and 0.5 becomes 0.
"""

import sys

import gymnasium as gym
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv


class Distance(gym.Env):
    observation_space = action_space = spaces.Discrete(2)

    def __init__(self, distance):
        self.distance = distance

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {"distance": self.distance}


makers = [lambda: Distance(0), lambda: Distance(0.5)]
expected = [make().reset()[1]["distance"] for make in makers]
found = SyncVectorEnv(makers).reset()[1]["distance"].tolist()
print("expected:", expected)
print("found:", found)
sys.exit(expected != found)
