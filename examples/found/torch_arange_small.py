"""torch 2.13.0, CPU: arithmetic on an arange of a small integer dtype does not wrap around in compiled code."""

import sys

import numpy as np
import torch


def turn(rows):
    return rows[(torch.arange(3, dtype=torch.uint8) - 2).long() % rows.size(0)]


rows = torch.arange(9)
print(
    "expected:",
    expected := turn(rows).tolist(),
    ((np.arange(3, dtype=np.uint8) - np.uint8(2)).astype(int) % 9).tolist(),
)
print("found:", found := torch.compile(turn)(rows).tolist())
sys.exit(found != expected)
