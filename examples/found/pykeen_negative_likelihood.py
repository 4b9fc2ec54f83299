"""PyKEEN 1.11.1: the negative likelihood ratio multiplies by the sums that it should divide by."""

import sys

import numpy as np
from pykeen.metrics.classification import NegativeLikelihoodRatio

matrix = np.array([[3, 1], [1, 7]])  # true positives, false negatives; false positives, true negatives: as documented
found = NegativeLikelihoodRatio().extract_from_confusion_matrix(matrix)
print("expected:", (1 / 4) / (7 / 8), "= the false negative rate divided by the true negative rate")
print("found:", found)
sys.exit(abs(found - (1 / 4) / (7 / 8)) > 1e-9)
