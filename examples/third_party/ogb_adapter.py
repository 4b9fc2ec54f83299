"""Rank test triples with OGB's evaluator of ogbl-wikikg2: one ranking at a time, ties shared."""

import torch
from candidates import list_candidates
from ogb.linkproppred import Evaluator


def find_ranks(scores, tests, known, batch_size):
    """Return the ranks of the test triples, by side and by the way of ties."""
    evaluator = Evaluator("ogbl-wikikg2")
    ranks = {("head", "realistic"): [], ("tail", "realistic"): []}
    for side, true, others in list_candidates(scores, tests, known):
        given = {"y_pred_pos": torch.tensor([true]), "y_pred_neg": torch.tensor([others], dtype=torch.float32)}
        ranks[side, "realistic"] += (1 / evaluator.eval(given)["mrr_list"]).tolist()
    return ranks
