"""PyKEEN 1.11.1: the evaluation dataset refuses filter triples that are one tensor, which its signature allows."""

import sys

import torch
from pykeen.evaluation.evaluation_loop import LCWAEvaluationDataset

triples = torch.tensor([[0, 0, 1], [1, 0, 2]])
print("expected: 4 items")
try:
    print("found:", len(LCWAEvaluationDataset(mapped_triples=triples, additional_filter_triples=triples)), "items")
except RuntimeError as error:
    print("found:", repr(error))
    sys.exit(1)
