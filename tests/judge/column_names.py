"""The columns in which two groups differ."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def name_difference(first: Sequence[Any], second: Sequence[Any]) -> str:
    """Return the name of the first column whose type or values differ in groups such as `Columns`; empty if none does."""
    for group, other in zip(first, second, strict=True):
        for name, column in group._asdict().items():
            right = getattr(other, name)
            if column.dtype != right.dtype or not np.array_equal(column, right):
                return str(name)
    return ""
