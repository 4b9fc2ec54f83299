"""The sizes of the batch that an engine proves, and the work from which it may choose them."""

from collections.abc import Callable
from typing import Final, NamedTuple


class Sizes(NamedTuple):
    """The sizes of the batch, which must not change any derivation. An engine without slots may ignore them.

    slots:        derivations in flight
    atoms:        padding of a goal beyond max_atoms
    resolvents:   padding of a step beyond max_resolvents
    match_window: clauses tried at each tick, over all slots
    score_window: resolvents scored at each tick, over all slots; max_resolvents where that is more
    pool:         candidates handed over at once
    """

    slots: int = 2
    atoms: int = 0
    resolvents: int = 0
    match_window: int = 16
    score_window: int = 16
    pool: int = 32


GRAPH_SIZES: Final = Sizes(slots=64, match_window=256, score_window=128, pool=1024)
"""Sizes of a batch on a graph, for makers of pipelines."""


class Workload(NamedTuple):
    """The work that an engine is made for.

    num_candidates: the candidates handed over at once, from the type of the device: `cpu` or `cuda`
    records:        whether the steps are recorded
    """

    num_candidates: Callable[[str], int]
    records: bool = False
