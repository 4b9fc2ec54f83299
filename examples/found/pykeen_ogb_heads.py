"""PyKEEN 1.11.1 with OGB 1.3.6: head prediction ranks the tail of the test triple instead of its head."""

import sys

import ogb.linkproppred
import torch
from pykeen.evaluation import OGBEvaluator, SampledRankBasedEvaluator
from pykeen.models import FixedModel
from pykeen.triples import CoreTriplesFactory

assert ogb.linkproppred
triples, negatives = torch.tensor([[0, 0, 2]]), torch.tensor([[1]])
factory = CoreTriplesFactory(triples, num_entities=3, num_relations=1)
model = FixedModel(triples_factory=factory)  # scores grow with the number of the head
options = {"evaluation_factory": factory, "head_negatives": negatives, "tail_negatives": negatives}
expected, found = (
    kind(**options).evaluate(model, triples, batch_size=1, use_tqdm=False).get_metric("head.mrr")
    for kind in (SampledRankBasedEvaluator, OGBEvaluator)
)
sys.exit(print("expected:", expected) or print("found:", found) or expected != found)
