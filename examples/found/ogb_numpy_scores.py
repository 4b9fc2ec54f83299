"""OGB 1.3.6: the evaluator of mean reciprocal ranks raises for numpy arrays, which it documents."""

import sys

import numpy as np
import torch
from ogb.linkproppred import Evaluator

scores = {"y_pred_pos": np.array([1.0]), "y_pred_neg": np.array([[0.0, 3.0]])}
tensors = {name: torch.tensor(each) for name, each in scores.items()}
print("expected:", Evaluator("ogbl-wikikg2").eval(tensors)["mrr_list"].tolist())
try:
    print("found:", Evaluator("ogbl-wikikg2").eval(scores)["mrr_list"].tolist())
except TypeError as error:
    print("found:", repr(error))
    sys.exit(1)
