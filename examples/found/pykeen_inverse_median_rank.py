"""PyKEEN 1.11.1: the weighted inverse median of integer ranks is 0. Optimistic and pessimistic ranks are integers."""

import sys

import numpy as np
from pykeen.metrics.ranking import InverseMedianRank, MedianRank

ranks, weights = np.array([2, 4, 8]), np.ones(3)
print("expected:", 1 / MedianRank()(ranks, weights=weights))
print("found:", InverseMedianRank()(ranks, weights=weights))
sys.exit(InverseMedianRank()(ranks, weights=weights) != 1 / 4)
