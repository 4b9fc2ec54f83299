"""Counts that say how many rows of the level below belong to each row."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kgverify.errors import UserError

ADD_UP: Final = "write one count per row of the level above, adding up to the rows of the level below"


def check_counts(counts: NDArray[Any], num_rows: int, below: str, place: str) -> None:
    """UserError unless unsigned counts add up to the rows that there are. below: what these are called"""
    total = int(counts.sum(dtype=np.uint64))
    # The second test: a sum modulo 2^64 proves nothing.
    if total != num_rows or (len(counts) and int(counts.max()) > num_rows):
        raise UserError(
            f"counts add up to {total}, but there are {num_rows} {below}",
            where=place,
            fix=ADD_UP,
        )
