"""TorchKGE 0.17.7: a model that was evaluated keeps its projected entities when other weights are loaded into it."""

import sys

import torch
from torchkge.models import TransHModel

torch.manual_seed(0)
evaluated, trained = TransHModel(4, 5, 2), TransHModel(4, 5, 2)
trained.projected_entities.data.zero_()  # as in a checkpoint of a model that was not evaluated yet
heads, tails, relations = torch.tensor([0]), torch.arange(5), torch.tensor([0])
evaluated.inference_prepare_candidates(heads, heads, relations)  # what an evaluation does first
evaluated.load_state_dict(trained.state_dict())
head, _, relation, candidates = evaluated.inference_prepare_candidates(heads, heads, relations)
found = evaluated.inference_scoring_function(head, candidates, relation)[0]
expected = trained.scoring_function(heads.expand(5), tails, relations.expand(5))
print("expected:", expected.tolist())
print("found:", found.tolist())
sys.exit(not torch.allclose(expected, found, atol=1e-5))
