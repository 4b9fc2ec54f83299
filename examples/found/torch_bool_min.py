"""torch 2.13.0, CPU: the index of the minimum of a bool tensor is that of a maximum in compiled code."""

import sys

import numpy as np
import torch


def find_first_open(done):
    return done.min(0).indices


done = torch.tensor([True, True, False, True])
print("expected:", find_first_open(done).item(), int(np.argmin(done.numpy())))
print("found:", found := torch.compile(find_first_open)(done).item())
sys.exit(found != 2)
