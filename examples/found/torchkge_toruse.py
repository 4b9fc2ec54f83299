"""TorchKGE 0.17.7: TorusE cannot rank relations."""

import sys

import torch
from torchkge.data_structures import KnowledgeGraph
from torchkge.evaluation import RelationPredictionEvaluator
from torchkge.models import TorusEModel

one = torch.tensor([0])
graph = KnowledgeGraph(kg={"heads": one, "tails": one + 1, "relations": one}, ent2ix={"a": 0, "b": 1}, rel2ix={"r": 0})
evaluator = RelationPredictionEvaluator(TorusEModel(4, 2, 1, "torus_L2"), graph)
print("expected: a mean reciprocal rank of 1.0, since there is one relation")
try:
    evaluator.evaluate(b_size=1, verbose=False)
    print("found:", evaluator.mrr())
except AttributeError as error:
    print("found:", repr(error))
    sys.exit(1)
