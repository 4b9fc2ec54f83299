"""Rank test triples with trec_eval, through pytrec_eval: all rankings in one call, ties by the name of the document."""

import pytrec_eval
from candidates import list_candidates


def find_ranks(scores, tests, known, batch_size):
    """Return the ranks of the test triples, by side and by the way of ties."""
    runs, sides = {}, {}
    for number, (side, true, others) in enumerate(list_candidates(scores, tests, known)):
        runs[f"{number}"] = {f"{i}": float(score) for i, score in enumerate([true, *others])}
        sides[f"{number}"] = (side, "any")
    judged = pytrec_eval.RelevanceEvaluator({number: {"0": 1} for number in runs}, {"recip_rank"}).evaluate(runs)
    ranks = {key: [] for key in sides.values()}
    for number, key in sides.items():
        ranks[key].append(1 / judged[number]["recip_rank"])
    return ranks
