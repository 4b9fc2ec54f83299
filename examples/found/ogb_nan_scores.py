"""OGB 1.3.6: a positive edge whose score is nan ranks first, so a model of nan has a mean reciprocal rank of 1."""

import sys

import torch
from ogb.linkproppred import Evaluator

scores = {"y_pred_pos": torch.full((2,), float("nan")), "y_pred_neg": torch.full((2, 3), float("nan"))}
found = Evaluator("ogbl-wikikg2").eval(scores)["mrr_list"].mean().item()
print("expected: nan or an exception; or 1 / 2.5 = 0.4, if all scores tie")
print("found:", found)
sys.exit(found == 1)
