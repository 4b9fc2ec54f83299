"""PyKEEN 1.11.1: the bootstrap of the macro evaluator resamples without its weights, so its mean is not the macro metric."""

import sys

import numpy as np
import torch
from pykeen.evaluation import MacroRankBasedEvaluator

scores = torch.zeros((100, 10))
scores[:99, 0] = 1.0  # 99 triples of one head rank first
scores[99, 1:] = 1.0  # one triple of another head ranks tenth
triples = torch.tensor([[0, 0, 0]] * 99 + [[1, 0, 0]])
evaluator = MacroRankBasedEvaluator(metrics=["mrr"], add_defaults=False)
evaluator.process_scores_(triples, "tail", scores, scores[:, :1])
found = np.mean(evaluator.finalize_multi(n_boot=200)["tail.realistic.inverse_harmonic_mean_rank"])
print("expected: about", evaluator.finalize().get_metric("tail.mrr"))
print("found:", found)
sys.exit(bool(found > 0.9))
