"""TorchKGE 0.17.7: nothing is filtered for a test triple that is not among the known triples."""

import sys
from collections import defaultdict

import torch
from torchkge.utils import filter_scores, get_rank

scores = torch.tensor([[0.0, 2.0, 1.0]])
head, relation, tail = torch.tensor([0]), torch.tensor([0]), torch.tensor([2])
ranks = []
for known in ({1, 2}, {1}):  # entity 1 is a known tail; once the test triple is listed beside it, once it is not
    filtered = filter_scores(scores, defaultdict(set, {(0, 0): known}), head, relation, tail)
    ranks.append(get_rank(filtered, tail).item())
print("expected:", ranks[0])
print("found:", ranks[1])
sys.exit(ranks[0] != ranks[1])
