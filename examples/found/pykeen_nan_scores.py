"""PyKEEN 1.11.1: a test triple whose score is nan ranks above the best, with a mean reciprocal rank of 2."""

import sys

import torch
from pykeen.evaluation import RankBasedEvaluator
from pykeen.metrics.ranking import InverseHarmonicMeanRank

scores = torch.tensor([[float("nan"), 1.0, 2.0, 3.0]])
evaluator = RankBasedEvaluator(metrics=["mrr"], add_defaults=False)
evaluator.process_scores_(torch.zeros((1, 3), dtype=torch.long), "tail", scores, scores[:, :1])
found = evaluator.finalize().get_metric("mrr")
print("expected: nan, an exception, or a value of", InverseHarmonicMeanRank.value_range.notate())
print("found:", found)
sys.exit(found > 1)
