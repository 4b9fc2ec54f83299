"""PyTorch Geometric 2.8.1: -1, with which its nearest-neighbour search fills up, counts as a hit of the row above."""

import sys

import torch
from torch_geometric.metrics import LinkPredRecall

predictions = torch.tensor([[3, 0], [0, -1]])  # row 1 has one prediction, and misses node 2
truth = torch.tensor([[0, 1], [3, 2]])
metric = LinkPredRecall(k=2)
metric.update(predictions, truth)
print("expected:", 0.5)
print("found:", metric.compute().item())
sys.exit(metric.compute().item() != 0.5)
