"""PyKEEN 1.11.1: an infinite score counts in the rank and not in the number of candidates, so that adjusted metrics are wrong."""

import sys

import torch
from pykeen.evaluation import RankBasedEvaluator

scores = torch.tensor([[1.0, float("inf"), float("inf"), 0.0]])  # rank 3 of 4; 2.5 is expected at random
evaluator = RankBasedEvaluator(metrics=["adjusted_mean_rank"], add_defaults=False)
evaluator.process_scores_(torch.zeros((1, 3), dtype=torch.long), "tail", scores, scores[:, :1])
found = evaluator.finalize().get_metric("adjusted_mean_rank")
print("expected:", 3 / 2.5)
print("found:", found)
sys.exit(abs(found - 3 / 2.5) > 1e-6)
