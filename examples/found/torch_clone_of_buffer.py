"""torch 2.13.0, CPU: a clone that is returned after an indexed write is the buffer itself, in compiled code."""

import sys

import torch


def write_and_copy(rows, source):
    rows.index_copy_(0, torch.tensor([1, 0]), source)
    return rows.clone()


rows, source = torch.zeros(2), torch.tensor([7.0, 8.0])
result = torch.compile(write_and_copy)(rows, source)
result.zero_()
print("expected:", [8.0, 7.0])
print("found:", found := rows.tolist())
sys.exit(found != [8.0, 7.0])
