"""torch 2.13.0, CPU: an update after a scatter into the same buffer reads what it has written, in compiled code."""

import sys

import numpy as np
import torch


def mirror(rows):
    rows.index_put_((torch.arange(6),), rows * 2.0)
    rows.add_(rows.flip(0))
    return rows


doubled = np.arange(6.0) * 2
print("expected:", mirror(torch.arange(6.0)).tolist(), (doubled + doubled[::-1]).tolist())
print("found:", found := torch.compile(mirror)(torch.arange(6.0)).tolist())
sys.exit(found != [10] * 6)
