"""PyKEEN 1.11.1: the evaluation loop marks entity i as true for the i-th triple of a batch, whatever its true entities."""

import sys

import torch
from pykeen.evaluation import ClassificationEvaluator, LCWAEvaluationLoop
from pykeen.models import FixedModel
from pykeen.triples import CoreTriplesFactory

triples = torch.tensor([[0, 0, 1], [0, 0, 2], [1, 0, 2], [3, 0, 1], [2, 0, 3]])
factory = CoreTriplesFactory(triples, num_entities=5, num_relations=1)
model = FixedModel(triples_factory=factory)
expected = ClassificationEvaluator().evaluate(model, triples, batch_size=5, use_tqdm=False).to_flat_dict()
loop = LCWAEvaluationLoop(factory, evaluator="classification", model=model)
found = loop.evaluate(batch_size=5, use_tqdm=False).to_flat_dict()
print("expected:", expected["both.average_precision_score"])
print("found:", found["both.average_precision_score"])
sys.exit(abs(expected["both.average_precision_score"] - found["both.average_precision_score"]) > 1e-6)
