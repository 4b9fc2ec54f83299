"""PyKEEN 1.11.1: the weighted median refuses integer weights, which the other weighted metrics accept."""

import sys

import numpy as np
from pykeen.metrics.ranking import ArithmeticMeanRank, MedianRank

ranks, weights = np.array([2, 4, 8]), np.array([1, 1, 1])
print("expected: 4.0, as with weights of 1.0; the mean is", ArithmeticMeanRank()(ranks, weights=weights))
try:
    print("found:", MedianRank()(ranks, weights=weights))
except TypeError as error:
    print("found:", repr(error))
    sys.exit(1)
