"""torch 2.13.0: `np.cumsum` of int8 overflows in compiled code."""

import sys

import numpy as np
import torch


def count(rows):
    return np.cumsum(rows)


rows = np.full(2, 100, np.int8)
print("expected:", count(rows).tolist(), np.add.accumulate(rows.astype(int)).tolist())
print("found:", found := torch.compile(count)(rows).tolist())
sys.exit(found != [100, 200])
