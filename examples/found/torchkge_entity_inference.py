"""TorchKGE 0.17.7: the inference of entities and of relations cannot store its scores."""

import sys

import torch
from torchkge.inference import EntityInference
from torchkge.models import DistMultModel

inference = EntityInference(DistMultModel(4, 3, 1), torch.tensor([0, 1]), torch.tensor([0, 0]), top_k=2)
print("expected: scores of shape", list(inference.scores.shape))
try:
    inference.evaluate(b_size=2, verbose=False)
    print("found: scores of shape", list(inference.scores.shape))
except (IndexError, RuntimeError) as error:
    print("found:", repr(error))
    sys.exit(1)
