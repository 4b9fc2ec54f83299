"""PyKEEN 1.11.1: Matthews' correlation coefficient lacks the square root of its formula."""

import sys

import numpy as np
from pykeen.metrics.classification import MatthewsCorrelationCoefficient
from sklearn.metrics import matthews_corrcoef

is_true = np.array([1, 1, 0, 0])
found = MatthewsCorrelationCoefficient()(is_true, np.array([0.9, 0.8, 0.2, 0.1]))
print("expected:", matthews_corrcoef(is_true, is_true))
print("found:", found)
sys.exit(found != 1)
