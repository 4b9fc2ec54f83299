"""Rank test triples with TGB's evaluator: one ranking at a time, ties shared."""

import numpy as np
from candidates import list_candidates
from tgb.linkproppred.evaluate import Evaluator


def find_ranks(scores, tests, known, batch_size):
    """Return the ranks of the test triples, by side and by the way of ties."""
    evaluator = Evaluator("tkgl-smallpedia")
    ranks = {("head", "realistic"): [], ("tail", "realistic"): []}
    for side, true, others in list_candidates(scores, tests, known):
        given = {"y_pred_pos": np.array([true]), "y_pred_neg": np.array([others]), "eval_metric": ["mrr"]}
        ranks[side, "realistic"].append(float(1 / evaluator.eval(given)["mrr"]))
    return ranks
