"""The candidates that are test triples, for dialects that exclude these alone."""

import numpy as np
from numpy.typing import NDArray

from kgverify.errors import UserError
from kgverify.program.outcomes import Side
from kgverify.trace.model.columns import CandidateSet


def find_positives(exclusion: str, candidates: CandidateSet, triples: NDArray[np.int32] | None) -> list[bool]:
    """Return which candidates are test triples, as far as an exclusion treats corruptions otherwise.

    triples: int32 [n, 3] the split of the queries. UserError if it is needed and None
    """
    if exclusion != "positives_only":
        return [True] * len(candidates.query)
    is_query: NDArray[np.bool_] = candidates.side == Side.NONE
    if triples is None:
        if is_query.all():
            return [True] * len(is_query)
        raise UserError(
            "the dialect excludes positives only, and which candidates these are is not known here",
            where="dialect.exclusion",
            fix="compare engines on a graph, or choose the exclusion always or never",
        )
    is_known = (candidates.query >= 0) & (candidates.query < len(triples))
    is_query[is_known] |= (triples[candidates.query[is_known]] == candidates.atom[is_known]).all(axis=1)
    return list(map(bool, is_query))
