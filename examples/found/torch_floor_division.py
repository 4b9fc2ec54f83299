"""torch 2.13.0: a floor division with an infinity has other results than in Python in compiled code."""

import math
import sys

import numpy as np
import torch


def divide(numbers, by):
    return numbers // by


numbers, by = torch.tensor([1.0, math.inf]), torch.tensor([-math.inf, 2.0])
with np.errstate(invalid="ignore"):
    print(
        "expected:", divide(numbers, by).tolist(), [a // b for a, b in zip(numbers.tolist(), by.tolist(), strict=True)]
    )
print("found:", found := torch.compile(divide)(numbers, by).tolist())
sys.exit(found[0] != -1 or not math.isnan(found[1]))
