"""torch 2.13.0, CPU: a remainder of an infinity is nan where compiled code is vectorized."""

import math
import sys

import torch


def wrap(numbers):
    return numbers % -math.inf


numbers = torch.full((16,), -1.5)
print("expected:", wrap(numbers)[0].item(), -1.5 % -math.inf)
print("found:", found := torch.compile(wrap)(numbers)[0].item())
sys.exit(found != -1.5)
