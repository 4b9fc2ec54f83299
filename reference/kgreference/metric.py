"""Ranking metrics, under PyKEEN's keys."""

import math
from collections.abc import Sequence
from typing import Final

from kgreference.rank import Ranks

HITS: Final = (1, 3, 10)


def metrics(
    head_ranks: Sequence[Ranks], tail_ranks: Sequence[Ranks], other_ranks: Sequence[Ranks] = ()
) -> dict[str, float]:
    """Return the mean reciprocal rank and hits at 1, 3 and 10, keyed ``{side}.{rank type}.{metric}``.

    The side `both` pools all ranks, those of neither side (`other_ranks`) included. A side without ranks has no keys.
    """
    sides = {"head": head_ranks, "tail": tail_ranks, "both": [*head_ranks, *tail_ranks, *other_ranks]}
    values = {}
    for side, ranks in sides.items():
        if not ranks:
            continue
        for rank_type in Ranks._fields:
            of_type = [getattr(each, rank_type) for each in ranks]
            prefix = f"{side}.{rank_type}"
            values[f"{prefix}.mean_reciprocal_rank"] = _mean([1.0 / value for value in of_type])
            for k in HITS:
                values[f"{prefix}.hits_at_{k}"] = _mean([float(value <= k) for value in of_type])
    return values


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
