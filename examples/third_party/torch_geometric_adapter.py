"""Rank test triples with PyTorch Geometric's `KGEModel.test`: tails alone, unfiltered, ties in any order."""

import torch
from torch_geometric.nn.kge.base import KGEModel


class Scores(KGEModel):
    """A model whose scores are given: float32 [heads, relations, tails]."""

    def __init__(self, table):
        super().__init__(len(table), table.shape[1], 1)
        self.table = torch.as_tensor(table)

    def forward(self, heads, relations, tails):
        """Return the scores of triples."""
        return self.table[heads, relations, tails]


def find_ranks(scores, tests, known, batch_size):
    """Return the ranks of the test triples, by side and by the way of ties. Known triples are ranked as well."""
    model = Scores(scores)
    found = [model.test(*torch.tensor([test]).T, batch_size=batch_size, log=False) for test in tests]
    return {("tail", "any"): [1 / mean_reciprocal_rank for _, mean_reciprocal_rank, _ in found]}
