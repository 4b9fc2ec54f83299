"""mo-gymnasium 1.3.2: the discounted return of an episode includes those of all episodes before it.

Expected: "dr" is the "discounted reward for each done sub-environment", as from the wrapper of one environment,
`mo_gymnasium.wrappers.MORecordEpisodeStatistics`, which begins again at each reset.
Found: at the end of an episode the vector wrapper clears `episode_returns`, but never `disc_episode_returns`.
"""

import sys

import mo_gymnasium
import numpy as np
from mo_gymnasium.wrappers.vector import MORecordEpisodeStatistics, MOSyncVectorEnv

vector = MOSyncVectorEnv([lambda: mo_gymnasium.make("deep-sea-treasure-v0")])
vector = MORecordEpisodeStatistics(vector, gamma=1.0)
vector.reset(seed=0)
returns, discounted = [], []
for _ in range(6):  # down: the treasure of 0.7 ends the episode; the step after it is the reset
    info = vector.step(np.array([1]))[4]
    if "episode" in info:
        returns.append(info["episode"]["r"][0].tolist())
        discounted.append(info["episode"]["dr"][0].tolist())
print("expected:", returns, "since gamma is 1")
print("found:", discounted)
sys.exit(returns != discounted)
