"""PyKEEN 1.11.1: `get_candidate_set_size` does not count the test triple, which the evaluator ranks as a candidate."""

import sys

import numpy as np
import torch
from pykeen.evaluation import RankBasedEvaluator
from pykeen.evaluation.evaluator import get_candidate_set_size
from pykeen.models import FixedModel
from pykeen.triples import CoreTriplesFactory

triples = torch.tensor([[0, 0, 0], [0, 0, 1]])  # both entities are true tails: each ranks first of one
evaluator = RankBasedEvaluator(clear_on_finalize=False)
model = FixedModel(triples_factory=CoreTriplesFactory(triples, num_entities=2, num_relations=1))
evaluator.evaluate(model, triples, use_tqdm=False)
expected, found = np.concatenate(evaluator.num_candidates["tail"]), get_candidate_set_size(triples)["tail_candidates"]
print("expected:", expected.tolist())
print("found:", found.tolist())
sys.exit(expected.tolist() != found.tolist())
