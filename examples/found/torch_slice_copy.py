"""torch 2.13.0, CPU: a buffer copied by slices gets what is written to its source later, in compiled code."""

import sys

import torch


def keep(previous, current):
    previous[:] = current[:]
    current.add_(10)


for name, run in (("expected:", keep), ("found:", torch.compile(keep))):
    previous, current = torch.zeros(3), torch.tensor([1.0, 2.0, 3.0])
    run(previous, current)
    print(name, previous.tolist())
sys.exit(previous.tolist() != [1, 2, 3])
