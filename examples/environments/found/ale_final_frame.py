"""ale-py 0.12.1: the last screen of an episode never reaches the observation of AtariVectorEnv.

Expected: the newest frame of the final observation is the screen in which the episode ended, as from `gym.make`.
Found: `PreprocessedEnv::step` leaves its loop at the end of the episode before it copies the screen. The newest frame
repeats the one before, in all autoreset modes; an agent that bootstraps at a time limit does so from it. AtariPreprocessing
of gymnasium 1.4.0, which the class follows, also leaves its loop early; AtariEnv does not.
"""

import sys

import ale_py
import gymnasium as gym
import numpy as np
from ale_py.vector_env import AtariVectorEnv

gym.register_envs(ale_py)
limit = {"max_num_frames_per_episode": 40, "repeat_action_probability": 0.0}
plain = {"img_height": 210, "img_width": 160, "frameskip": 1, "stack_num": 1, "maxpool": False, "noop_max": 0}
vector = AtariVectorEnv("breakout", 1, grayscale=False, use_fire_reset=False, **plain, **limit)
single = gym.make("ALE/Breakout-v5", frameskip=1, **limit)
vector.reset(seed=0)
single.reset(seed=0)
differences = []
for step in range(40):
    action = step % 4
    observed, _, _, truncated, _ = vector.step(np.array([action]))
    screen, _, _, also_truncated, _ = single.step(action)
    differences.append(int((observed[0, 0] != screen).any(-1).sum()))
print("expected: 0 pixels differ in each of 40 steps; both end:", bool(truncated[0]), also_truncated)
print("found:", {step: number for step, number in enumerate(differences, 1) if number})
sys.exit(any(differences))
