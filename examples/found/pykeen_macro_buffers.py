"""PyKEEN 1.11.1: the macro evaluator forgets its ranks although told not to, so that no confidence interval can be computed."""

import sys

import torch
from pykeen.evaluation import MacroRankBasedEvaluator, RankBasedEvaluator

scores = torch.tensor([[2.0, 1.0, 3.0]])
numbers = []
for cls in (RankBasedEvaluator, MacroRankBasedEvaluator):
    evaluator = cls(clear_on_finalize=False, metrics=["mrr"], add_defaults=False)
    evaluator.process_scores_(torch.zeros((1, 3), dtype=torch.long), "tail", scores, scores[:, :1])
    evaluator.finalize()
    numbers.append(len(evaluator.ranks["tail", "realistic"]))
print("expected:", numbers[0], "batch of ranks")
print("found:", numbers[1])
sys.exit(numbers[0] != numbers[1])
