"""Rank test triples with TorchKGE's evaluator: filtered, both sides, ties counted as higher."""

import torch
from torchkge.data_structures import KnowledgeGraph
from torchkge.evaluation import LinkPredictionEvaluator


class Scores(torch.nn.Module):
    """A model whose scores are given: float32 [heads, relations, tails]. A candidate side is None."""

    def __init__(self, table):
        super().__init__()
        self.table = torch.nn.Parameter(torch.as_tensor(table), requires_grad=False)

    def inference_prepare_candidates(self, heads, tails, relations, entities):
        """Return what the scoring function receives."""
        return heads, tails, relations, None

    def inference_scoring_function(self, heads, tails, relations):
        """Return the scores of every entity as the head or the tail."""
        return self.table[:, relations, tails].T if heads is None else self.table[heads, relations]


def find_ranks(scores, tests, known, batch_size):
    """Return the ranks of the test triples, by side and by the way of ties."""
    names = {"ent2ix": {i: i for i in range(scores.shape[0])}, "rel2ix": {i: i for i in range(scores.shape[1])}}
    graphs = [dict(zip(("heads", "relations", "tails"), torch.tensor(each).T, strict=True)) for each in (known, tests)]
    whole = KnowledgeGraph(kg=graphs[0], **names)
    dictionaries = {name: getattr(whole, name) for name in ("dict_of_heads", "dict_of_tails", "dict_of_rels")}
    evaluator = LinkPredictionEvaluator(Scores(scores), KnowledgeGraph(kg=graphs[1], **names, **dictionaries))
    evaluator.evaluate(batch_size, verbose=False)
    ranks = {"head": evaluator.filt_rank_true_heads, "tail": evaluator.filt_rank_true_tails}
    return {(side, "pessimistic"): each.tolist() for side, each in ranks.items()}
