"""torch 2.13.0: the variance of a tensor without dimensions that holds an infinity is 0 in compiled code."""

import math
import sys

import numpy as np
import torch


def vary(value):
    return value.var(correction=0)


value = torch.tensor(math.inf)
with np.errstate(invalid="ignore"):
    print("expected:", vary(value).item(), float(np.var(value.numpy())))
print("found:", found := torch.compile(vary)(value).item())
sys.exit(not math.isnan(found))
