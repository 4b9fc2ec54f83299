"""PyKEEN 1.11.1: the 90 % confidence interval of a metric is the width of the middle 10 %."""

import sys

import numpy as np
import torch
from pykeen.evaluation import RankBasedEvaluator

scores = torch.rand((100, 20), generator=torch.Generator().manual_seed(0))
evaluator = RankBasedEvaluator(metrics=["mrr"], add_defaults=False)
evaluator.process_scores_(torch.zeros((100, 3), dtype=torch.long), "tail", scores, scores[:, :1])
values = evaluator.finalize_multi(n_boot=200)["tail.realistic.inverse_harmonic_mean_rank"]
low, high = np.percentile(values, [5, 95])
_, width = evaluator.finalize_with_confidence(n_boot=200, ci=90)["tail.realistic.inverse_harmonic_mean_rank"]
print("expected:", high - low)
print("found:", width)
sys.exit(bool(abs(width - (high - low)) > 1e-9))
