"""gymnasium 1.4.0: the vector wrapper NumpyToTorch raises where an episode ends in the mode SameStep.

Expected: a step with tensors. The wrapper's documentation restricts it to no autoreset mode, and SameStep stores the
final observation in `info["final_obs"]`.
Found: `final_obs` is an array of objects, which no tensor can hold; `array_conversion` passes it to torch, which raises.
"""

import sys

import gymnasium as gym
import torch
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers.vector import NumpyToTorch

vector = NumpyToTorch(SyncVectorEnv([lambda: gym.make("CartPole-v1", max_episode_steps=2)], autoreset_mode="SameStep"))
vector.reset(seed=0)
print("expected: truncated [False], then [True]")
code = 0
try:
    for _ in range(2):
        print("found: truncated", vector.step(torch.tensor([0]))[3].tolist())
except (BufferError, TypeError) as error:
    print("found:", error)
    code = 1
sys.exit(code)
