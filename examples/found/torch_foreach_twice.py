"""torch 2.13.0: a fused update that lists a tensor twice changes it once in compiled code."""

import sys

import torch


def scale(rows):
    torch._foreach_mul_([rows, rows], [2.0, 10.0])
    return rows


print("expected:", scale(torch.ones(2)).tolist(), [1 * 2 * 10] * 2)
print("found:", found := torch.compile(scale)(torch.ones(2)).tolist())
sys.exit(found != [20, 20])
