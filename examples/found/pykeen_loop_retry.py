"""PyKEEN 1.11.1: an evaluation loop that runs out of memory retries with smaller batches and counts the first ranks twice."""

import sys

import torch
from pykeen.evaluation import LCWAEvaluationLoop
from pykeen.models import FixedModel
from pykeen.triples import CoreTriplesFactory


def _predict(hrt_batch, target, **options):  # tails need more memory than heads
    if len(hrt_batch) > 1 and target == "tail":
        raise torch.OutOfMemoryError
    return torch.zeros((len(hrt_batch), 3))


factory = CoreTriplesFactory(torch.tensor([[0, 0, 1], [1, 0, 2]]), num_entities=3, num_relations=1)
(model := FixedModel(triples_factory=factory)).predict = _predict
found = LCWAEvaluationLoop(factory, model=model).evaluate(batch_size=2, use_tqdm=False).get_metric("count")
sys.exit(print("expected: 4.0 ranks\nfound:", found, "ranks") or found != 4)
