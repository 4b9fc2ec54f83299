"""unKR 1.0.3: a filtered triple scores -10,000,000, and ranks above a test triple that scores less."""

import runpy
import sys
from importlib.metadata import distribution

import torch

path = distribution("unKR").locate_file("unKR/eval_task/link_prediction.py")  # the whole package needs more packages
scores, known = torch.tensor([[-3e7, -2e7, -4e7]]), torch.tensor([[1, 1, 0]])
found = runpy.run_path(str(path))["calc_ranks"](torch.tensor([0]), known, scores).item()
print("expected: 1, since entity 1 is filtered and entity 2 scores less")
print("found:", found)
sys.exit(found != 1)
