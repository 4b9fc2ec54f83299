"""PyKEEN 1.11.1: the evaluator without a filter always raises."""

import sys

import torch
from pykeen.evaluation import RankBasedEvaluator
from pykeen.models import FixedModel
from pykeen.triples import CoreTriplesFactory

triples = torch.tensor([[0, 0, 1], [1, 0, 2]])
model = FixedModel(triples_factory=CoreTriplesFactory(triples, num_entities=3, num_relations=1))
print("expected: a mean reciprocal rank")
try:
    print("found:", RankBasedEvaluator(filtered=False).evaluate(model, triples, use_tqdm=False).get_metric("mrr"))
except ValueError as error:
    print("found:", repr(error))
    sys.exit(1)
