"""torchrl 0.14.1: GymWrapper cannot wrap a VecEnv of Stable-Baselines3.

Expected: an environment whose batch size is the number of slots; the documentation of `env`: "Batched environments
(VecEnv or gym.VectorEnv) are supported".
Found: the specs of a VecEnv are those of one slot, and the constructor raises since they lack the batch size.
"""

import sys

import gymnasium as gym
from stable_baselines3.common.vec_env import DummyVecEnv
from torchrl.envs import GymWrapper

print("expected: batch size [2]")
code = 0
try:
    env = GymWrapper(DummyVecEnv([lambda: gym.make("CartPole-v1")] * 2))
    print("found: batch size", list(env.batch_size))
except ValueError as error:
    print("found:", str(error).partition(": ")[0])
    code = 1
sys.exit(code)
