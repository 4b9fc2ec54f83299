"""The refusal of columns for their first bad row."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kgverify.errors import UserError


def refuse_first(is_bad: NDArray[np.bool_], text: str, *columns: NDArray[Any], where: str, fix: str) -> None:
    """Raise a UserError about the first bad row, if there is one.

    text: what the row is, with `{}` for its values in the columns: `is {}, expected 0 to 3`
    """
    if is_bad.any():
        row = int(np.argmax(is_bad))
        raise UserError(f"row {row} {text.format(*(column[row] for column in columns))}", where=where, fix=fix)
