"""The stage `metric`: rank-based metrics, with PyKEEN's keys (`both.realistic.mean_reciprocal_rank`)."""

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kgverify.errors import InternalError, count_of
from kgverify.program.outcomes import Side
from kgverify.trace.model.columns import Rankings

HITS_AT: Final = (1, 3, 10)
MRR: Final = "both.realistic.mean_reciprocal_rank"
"""The key of the headline metric."""


def compute_metrics(rankings: Rankings) -> dict[str, float]:
    """Compute MRR and Hits@1, 3, 10 for head, tail and both sides, for each rank type.

    A side without rankings has no keys. InternalError for a mean reciprocal rank outside (0, 1].
    """
    ranks = {
        "optimistic": rankings.optimistic,
        "realistic": (rankings.optimistic + rankings.pessimistic) / 2,
        "pessimistic": rankings.pessimistic,
    }
    sides = {
        "head": rankings.side == Side.HEAD,
        "tail": rankings.side == Side.TAIL,
        "both": np.ones(len(rankings.side), np.bool_),
    }
    metrics = {}
    for side, mask in sides.items():
        for kind, values in ranks.items() if mask.any() else ():
            reciprocal = _mean(1 / values[mask])
            if not 0 < reciprocal <= 1:
                raise InternalError(f"the mean reciprocal rank is {reciprocal}, outside (0, 1]")
            metrics[f"{side}.{kind}.mean_reciprocal_rank"] = reciprocal
            for k in HITS_AT:
                metrics[f"{side}.{kind}.hits_at_{k}"] = _mean(values[mask] <= k)
    return metrics


def describe_hits(num_ranked: NDArray[Any]) -> list[str]:
    """Return a note if rankings have k candidates or fewer, so that hits at k says nothing about them.

    num_ranked: the candidates of each ranking, int [n]
    """
    total = count_of(len(num_ranked), "ranking")
    return [
        f"{num:,} of {total} {'has' if num == 1 else 'have'} {count_of(k, 'candidate')} or fewer:"
        f" each is a hit at {k}, whatever its scores"
        for k in HITS_AT
        if (num := int((num_ranked <= k).sum()))
    ]


def _mean(values: NDArray[Any]) -> float:
    """Return the mean, rounded once, so that it does not depend on the order of the values."""
    return math.fsum(values.tolist()) / len(values)
