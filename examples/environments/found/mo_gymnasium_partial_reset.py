"""mo-gymnasium 1.3.2: after a partial reset, MOSyncVectorEnv returns old observations of the other slots.

Expected: slots outside of `reset_mask` keep their last observation, as in SyncVectorEnv, whose `reset` this class uses.
Found: `step` does not store the observations in `self._env_obs`, so `reset` returns those of the reset before.
"""

import sys

import mo_gymnasium
import numpy as np
from mo_gymnasium.wrappers.vector import MOSyncVectorEnv

vector = MOSyncVectorEnv([lambda: mo_gymnasium.make("deep-sea-treasure-v0")] * 2)
vector.reset(seed=0)
expected = vector.step(np.array([3, 3]))[0][1].tolist()
found = vector.reset(options={"reset_mask": np.array([True, False])})[0][1].tolist()
print("expected:", expected)
print("found:", found)
sys.exit(expected != found)
