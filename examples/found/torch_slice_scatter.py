"""torch 2.13.0, CPU: a scattered copy of a buffer changes with the buffer, in compiled code."""

import sys

import torch


def put_beside(rows, source):
    result = torch.slice_scatter(rows, source, 0, 1, 3)
    rows.zero_()
    return result


print("expected:", put_beside(torch.arange(1, 6), torch.tensor([7, 8])).tolist())
print("found:", found := torch.compile(put_beside)(torch.arange(1, 6), torch.tensor([7, 8])).tolist())
sys.exit(found != [1, 7, 8, 4, 5])
