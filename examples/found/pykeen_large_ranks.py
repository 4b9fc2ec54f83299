"""PyKEEN 1.11.1: realistic ranks are rounded to float32, and are wrong above 2**24 entities."""

import sys

import torch
from pykeen.evaluation.ranks import Ranks

scores = torch.ones((1, 2**24 + 1))
scores[0, 0] = 0.0  # the last of all
ranks = Ranks.from_scores(scores[:, :1], scores)
print("expected:", ranks.optimistic.item(), "as the optimistic and the pessimistic rank", ranks.pessimistic.item())
print("found:", int(ranks.realistic))
sys.exit(int(ranks.realistic) != ranks.optimistic.item())
