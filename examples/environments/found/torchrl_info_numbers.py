"""torchrl 0.14.1: `auto_register_info_dict` raises if an environment reports plain numbers.

Expected: the values of `info` in each step, since its documentation asks only that they can be registered "as numerical
values". FrozenLake reports its probabilities as a float and, at the reset, as an int.
Found: default_info_dict_reader reads `val.dtype`, which only arrays have.
"""

import sys

from torchrl.envs import GymEnv

print("expected: prob [[1.0]]")
code = 0
try:
    env = GymEnv("FrozenLake-v1", is_slippery=False).auto_register_info_dict()
    print("found: prob", env.rollout(1)["next", "prob"].tolist())
except AttributeError as error:
    print("found:", error)
    code = 1
sys.exit(code)
