"""The effort that goes into explaining divergences: the sizes from which on a sample stands for all."""

from typing import Final, NamedTuple


class Effort(NamedTuple):
    """The sizes up to which everything is done. Known runs pass each of them with little work.

    replayed: the divergences replayed one by one. A further one gets the stage and the class of those that differ
              alike in the recorded steps, if these all have the same; every tenth is replayed nevertheless
    alone:    the derivations that are run without others, to tell the machinery of the batch from a state handed on wrongly
    exact:    the causes up to which every subset is evaluated, to split the loss
    samples:  the orders of the causes that are drawn for more causes
    explained: the causes whose conditions are sought
    """

    replayed: int = 200
    alone: int = 20
    exact: int = 8
    samples: int = 200
    explained: int = 12


FULL: Final = Effort()
LITTLE: Final = Effort(replayed=6, alone=2, exact=3, samples=5, explained=0)
"""The effort for known answers."""
