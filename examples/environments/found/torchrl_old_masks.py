"""torchrl 0.14.1: ActionMask uses old masks for the slots of a SerialEnv that go on when another slot is reset.

Expected: "random actions respect legal actions": in a rollout, each action is legal by the mask stored with it, as it is
in a ParallelEnv.
Found: `_reset` takes the masks of all slots from the result of the reset, which for the others still contains those of
their own last reset. The policy sees the right mask; the action spec has the wrong one. For the same reason, VecNorm and
VecNormV2 update their statistics with old observations.
"""

import sys

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from torchrl.envs import ActionMask, GymWrapper, SerialEnv, TransformedEnv


class Counter(gym.Env):
    observation_space = spaces.Dict({"action_mask": spaces.MultiBinary(9)})
    action_space = spaces.Discrete(9)

    def __init__(self, length):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return {"action_mask": np.eye(9, dtype=np.int8)[0]}, {}

    def step(self, action):
        self.steps += 1
        return {"action_mask": np.eye(9, dtype=np.int8)[self.steps]}, 0.0, self.steps == self.length, False, {}


makers = [lambda length=length: GymWrapper(Counter(length), categorical_action_encoding=True) for length in (2, 5)]
rollout = TransformedEnv(SerialEnv(2, makers), ActionMask()).rollout(10, break_when_any_done=False)
print("expected:", rollout["action_mask"].int().argmax(-1)[1].tolist(), "the only legal actions of slot 1")
print("found:", rollout["action"][1].tolist())
sys.exit(not (rollout["action"] == rollout["action_mask"].int().argmax(-1)).all())
