"""PyKEEN 1.11.1: the accuracy multiplies the right positives by the right negatives instead of adding them."""

import sys

import numpy as np
from pykeen.metrics.classification import Accuracy

is_true = np.array([1, 0])
print("expected: 1.0, since both triples are classified right")
print("found:", Accuracy()(is_true, np.array([0.9, 0.1])))
sys.exit(Accuracy()(is_true, np.array([0.9, 0.1])) != 1)
