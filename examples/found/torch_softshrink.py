"""torch 2.13.0: softshrink of nan is 0 in compiled code."""

import math
import sys

import torch

shrink = torch.nn.functional.softshrink
values = torch.tensor([math.nan, 2.0])
print("expected:", shrink(values).tolist(), shrink(values.double()).tolist())
print("found:", found := torch.compile(shrink)(values).tolist())
sys.exit(not math.isnan(found[0]))
