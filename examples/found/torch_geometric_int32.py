"""PyTorch Geometric 2.8.1: link prediction metrics overflow with int32 indices of large batches."""

import sys

import torch
from torch_geometric.metrics import LinkPredRecall

num_rows, node = 1500, 2_000_000
truth = torch.stack([torch.arange(num_rows), torch.full((num_rows,), node)])
for dtype, name in ((torch.int64, "expected:"), (torch.int32, "found:")):
    metric = LinkPredRecall(k=1)
    try:
        metric.update(truth[1:].T.to(dtype), truth.to(dtype))
        print(name, metric.compute().item())
    except RuntimeError as error:
        print(name, repr(error))
        sys.exit(1)
