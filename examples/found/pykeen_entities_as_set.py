"""PyKEEN 1.11.1: the evaluator refuses a set of entities, which its signature allows and its check of the triples accepts."""

import sys

import torch
from pykeen.evaluation import RankBasedEvaluator
from pykeen.models import FixedModel
from pykeen.triples import CoreTriplesFactory

triples = torch.tensor([[0, 0, 1], [1, 0, 2]])
model = FixedModel(triples_factory=CoreTriplesFactory(triples, num_entities=4, num_relations=1))
options = {"mapped_triples": triples, "use_tqdm": False}
print("expected:", RankBasedEvaluator().evaluate(model, **options, restrict_entities_to=[0, 1, 2]).get_metric("mrr"))
try:
    print("found:", RankBasedEvaluator().evaluate(model, **options, restrict_entities_to={0, 1, 2}).get_metric("mrr"))
except IndexError as error:
    print("found:", repr(error))
    sys.exit(1)
