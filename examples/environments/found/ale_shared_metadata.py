"""ale-py 0.12.1: creating an AtariVectorEnv changes the autoreset mode that existing environments report.

Expected: `metadata["autoreset_mode"]` is that of the environment. Wrappers of gymnasium, such as RecordEpisodeStatistics,
decide by it which steps are resets; gymnasium copies the dictionary "such that we don't modify the class-level metadata".
Found: the constructor writes into `VectorEnv.metadata`, the one dictionary of gymnasium's base class.
"""

import sys

from ale_py.vector_env import AtariVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

training = AtariVectorEnv("pong", 1, autoreset_mode="NextStep")
evaluation = AtariVectorEnv("pong", 1, autoreset_mode="SameStep")
print("expected:", training.autoreset_mode)
print("found:", RecordEpisodeStatistics(training)._autoreset_mode)
sys.exit(training.metadata["autoreset_mode"] != training.autoreset_mode)
