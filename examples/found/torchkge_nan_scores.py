"""TorchKGE 0.17.7: a model whose scores are nan has rank 0 everywhere, so hits of 1 and an infinite mean reciprocal rank."""

import sys

import torch
from torchkge.data_structures import KnowledgeGraph
from torchkge.evaluation import LinkPredictionEvaluator
from torchkge.models import DistMultModel

one = torch.tensor([0])
graph = KnowledgeGraph(kg={"heads": one, "tails": one + 1, "relations": one}, ent2ix={"a": 0, "b": 1}, rel2ix={"r": 0})
model = DistMultModel(4, 2, 1)
model.ent_emb.weight.data.fill_(float("nan"))
evaluator = LinkPredictionEvaluator(model, graph)
evaluator.evaluate(b_size=1, verbose=False)
print("expected: nan, an exception, or a value of (0, 1]")
print("found:", evaluator.mrr()[1], "and hits at 1 of", evaluator.hit_at_k(1)[1])
sys.exit(evaluator.mrr()[1] > 1)
