"""PyKEEN 1.11.1 with OGB 1.3.6: the OGB evaluator ignores `targets`, and evaluates heads when asked for tails alone."""

import sys

import ogb.linkproppred
import torch
from pykeen.evaluation import OGBEvaluator
from pykeen.models import FixedModel
from pykeen.triples import CoreTriplesFactory

assert ogb.linkproppred
triples, negatives = torch.tensor([[0, 0, 2]]), torch.tensor([[1]])
factory = CoreTriplesFactory(triples, num_entities=3, num_relations=1)
model = FixedModel(triples_factory=factory)
evaluator = OGBEvaluator(evaluation_factory=factory, head_negatives=negatives, tail_negatives=negatives)
results = evaluator.evaluate(model, triples, batch_size=1, use_tqdm=False, targets=["tail"])
print("expected:", ["both", "tail"])
print("found:", sorted({key.side for key in results.data}))
sys.exit("head" in {key.side for key in results.data})
