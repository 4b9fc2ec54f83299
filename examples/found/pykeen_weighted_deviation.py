"""PyKEEN 1.11.1: the median absolute deviation is scaled by 1.4826 without weights, and not scaled with equal weights."""

import sys

import numpy as np
from pykeen.metrics.ranking import MedianAbsoluteDeviation

ranks = np.array([1, 2, 4, 8, 16])
results = [MedianAbsoluteDeviation()(ranks, weights=weights) for weights in (None, np.ones(5))]
print("expected:", results[0], "with and without equal weights, or", np.median(np.abs(ranks - np.median(ranks))))
print("found:", *results)
sys.exit(not np.isclose(*results))
