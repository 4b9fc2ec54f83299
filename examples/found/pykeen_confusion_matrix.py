"""PyKEEN 1.11.1: the false positive rate is the false negative rate, since the confusion matrix is read by another layout."""

import sys

import numpy as np
from pykeen.metrics.classification import FalseNegativeRate, FalsePositiveRate

is_true, scores = np.array([1, 1, 0, 0, 0, 0, 0]), np.array([0.9, 0.1, 0.8, 0.0, 0.0, 0.0, 0.0])
print("expected:", 1 / 5, "of 5 false triples are among the first 2, and", 1 / 2, "of 2 true triples are not")
print("found:", FalsePositiveRate()(is_true, scores), FalseNegativeRate()(is_true, scores))
sys.exit(FalsePositiveRate()(is_true, scores) != 1 / 5)
