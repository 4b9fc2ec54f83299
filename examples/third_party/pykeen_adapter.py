"""Rank test triples with PyKEEN's evaluator: filtered, both sides, ties in three ways."""

import numpy as np
import torch
from pykeen.evaluation import RankBasedEvaluator


class Scores(torch.nn.Module):
    """A model whose scores are given: float32 [heads, relations, tails]."""

    def __init__(self, table):
        super().__init__()
        self.table, self.num_entities, self.device = torch.as_tensor(table), len(table), torch.device("cpu")

    def predict(self, hrt_batch, target, **_):
        """Return the scores of every entity as the head or the tail."""
        heads, relations, tails = hrt_batch.T
        return self.table[:, relations, tails].T.clone() if target == "head" else self.table[heads, relations]


def find_ranks(scores, tests, known, batch_size):
    """Return the ranks of the test triples, by side and by the way of ties."""
    evaluator = RankBasedEvaluator(clear_on_finalize=False, metrics=["mrr"], add_defaults=False)
    options = {"batch_size": batch_size, "use_tqdm": False, "additional_filter_triples": [torch.tensor(known)]}
    evaluator.evaluate(Scores(scores), torch.tensor(tests), **options)
    return {key: np.concatenate(ranks).tolist() for key, ranks in evaluator.ranks.items()}
