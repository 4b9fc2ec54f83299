"""PyTorch Geometric 2.8.1: the mean rank of `KGEModel.test` counts from 0, and the reciprocal rank beside it from 1."""

import sys

import torch
from torch_geometric.nn import DistMult

model = DistMult(num_nodes=2, num_relations=1, hidden_channels=1)
model.node_emb.weight.data = torch.tensor([[1.0], [2.0]])
model.rel_emb.weight.data = torch.ones((1, 1))
zero = torch.tensor([0])
rank, reciprocal, _ = model.test(zero, zero, zero + 1, batch_size=2, log=False)
print("expected:", 1 / reciprocal, "as its reciprocal rank")
print("found:", rank)
sys.exit(rank != 1 / reciprocal)
