"""torch 2.13.0: a number computed from a float argument keeps its second value in compiled code."""

import sys

import torch


def count(rows, scale):
    return rows + scale, int(scale * 1.5)


rows, compiled = torch.ones(3), torch.compile(count)
for scale in (3.0, 2.5, 4.0):
    expected, found = (run(rows, scale)[1] for run in (count, compiled))
print("expected:", expected, 4.0 * 1.5)
print("found:", found)
sys.exit(found != 6)
