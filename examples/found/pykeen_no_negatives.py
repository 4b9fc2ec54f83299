"""PyKEEN 1.11.1: the sampled evaluator raises where every entity is true; the full one gives rank 1."""

import sys

import torch
from pykeen.evaluation import SampledRankBasedEvaluator
from pykeen.triples import CoreTriplesFactory

triples = torch.tensor([[0, 0, 0], [0, 0, 1]])
print("expected: an evaluator, with a warning that there are too few candidates")
try:
    SampledRankBasedEvaluator(CoreTriplesFactory(triples, num_entities=2, num_relations=1), num_negatives=1)
except ZeroDivisionError as error:
    print("found:", repr(error))
    sys.exit(1)
print("found: an evaluator")
