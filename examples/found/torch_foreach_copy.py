"""torch 2.13.0, CPU: a fused update of rows by their own mirror image reads what it has written, in compiled code."""

import sys

import numpy as np
import torch


def add_mirrored(rows):
    torch._foreach_add_([rows], [rows.flip(0)])
    return rows


print("expected:", add_mirrored(torch.arange(6.0)).tolist(), (np.arange(6.0) + np.arange(6.0)[::-1]).tolist())
print("found:", found := torch.compile(add_mirrored)(torch.arange(6.0)).tolist())
sys.exit(found != [5] * 6)
