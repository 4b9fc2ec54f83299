"""TorchKGE 0.17.7: a filtered triple scores minus infinity, and ties with a test triple that scores so itself."""

import sys
from collections import defaultdict

import torch
from torchkge.utils import filter_scores, get_rank

scores = torch.tensor([[0.0, 1.0, float("-inf")]])  # the logarithm of a probability of 0
zero, tail = torch.tensor([0]), torch.tensor([2])
filtered = filter_scores(scores, defaultdict(set, {(0, 0): {1, 2}}), zero, zero, tail)  # entity 1 is a known tail
print("expected: 2 of 2 candidates")
print("found:", get_rank(filtered, tail).item(), "of 2 candidates")
sys.exit(get_rank(filtered, tail).item() != 2)
