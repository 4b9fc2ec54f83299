"""envpool 1.2.5: Pendulum-v1 turns further than its maximal speed allows.

Expected: the transition of gymnasium's Pendulum-v1: the speed is clipped to 8, then the angle changes by 0.05 * 8 at most.
Found: version 1 was made to clip first, but `theta_ += new_theta_dot * kDt` still adds the speed before the clip.
"""

import sys

import envpool
import numpy as np

pool = envpool.make("Pendulum-v1", env_type="gymnasium", num_envs=1, seed=3)
observation, _ = pool.reset()
widest = 0.0
for _ in range(2000):
    cosine, sine, speed = observation[0].astype(float)
    push = np.array([[np.copysign(2, speed)]], np.float32)  # always in the direction of the motion
    observation, _, _, truncated, _ = pool.step(push)
    if not truncated[0] and abs(observation[0, 2]) == 8:
        turned = np.arctan2(observation[0, 1], observation[0, 0]) - np.arctan2(sine, cosine)
        widest = max(widest, abs((turned + np.pi) % (2 * np.pi) - np.pi))
print("expected: at most 0.4 in a step with the speed 8")
print("found:", round(float(widest), 4))
sys.exit(bool(widest > 0.4001))
