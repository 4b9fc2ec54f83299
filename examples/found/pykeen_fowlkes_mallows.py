"""PyKEEN 1.11.1: the index of Fowlkes and Mallows has a sum where its definition has a product, and exceeds 1."""

import sys

import numpy as np
from pykeen.metrics.classification import FowlkesMallowsIndex

found = FowlkesMallowsIndex()(np.array([1, 1, 1, 0, 0, 0]), np.array([0.9, 0.8, 0.7, 0.3, 0.2, 0.1]))
print("expected: 1.0, in", FowlkesMallowsIndex.value_range.notate())
print("found:", found)
sys.exit(found > 1)
