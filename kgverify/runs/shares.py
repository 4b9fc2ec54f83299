"""The units of a part that several processes prove together. They depend on the part alone, and so does the result."""

from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from kgverify.trace.model.columns import find_end

UNITS: Final = 8
"""The most units that are proved at once."""

_LONG: Final = 4 * UNITS
"""The units of a list that takes long to prove: more than fit into one block."""

_CLAIMS: Final = 4
"""The claims by which each process takes the units that are left, if they stay as large."""


class Share(Protocol):
    """The units that one process proves. leads: whether it also counts the true triples, which every process proves."""

    leads: bool

    def take(self, name: str, num: int) -> range:
        """Return the next units to prove of a list of `num`; none if none is left."""
        ...


class Whole:
    """Every unit of a part."""

    leads = True

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()

    def take(self, name: str, num: int) -> range:
        """Return the next units. Of a long list, the last one is taken alone, and the first one if it is the part's first.

        The engine waits until the first is drawn, and the end until the last is compared.
        """
        begin, end = self._taken[name], num
        if num > _LONG and not self._taken.total():
            end = 1
        elif num > _LONG and begin < num - 1:
            end = num - 1
        self._taken[name] = end
        return range(begin, end)


class Shared:
    """The units that one of several processes proves.

    add: adds to a counter that all processes share, and returns its new value; number: of the part; size: of the group
    """

    def __init__(self, add: Callable[[str, int], int], number: int, size: int, *, leads: bool) -> None:
        self._add, self._number, self._size, self.leads = add, number, size, leads

    def take(self, name: str, num: int) -> range:
        """Return the next units, of long lists several, and fewer towards the end, so that all processes end alike."""
        counter = f"{name} of part {self._number}"
        wanted = max(1, min(UNITS, (num - self._add(counter, 0)) // (_CLAIMS * self._size)))
        begin = self._add(counter, wanted) - wanted
        return range(min(begin, num), min(begin + wanted, num))


def cut_units(starts: NDArray[np.int64], block_size: int) -> list[int]:
    """Return the bounds of units of ragged rows, which have an eighth of a block's elements, and less towards the end."""
    bounds = [0]
    while bounds[-1] < len(starts) - 1:
        begin = bounds[-1]
        left = int(starts[-1] - starts[begin])
        size = max(block_size // UNITS**2, min(left // (2 * UNITS), block_size // UNITS))
        bounds.append(find_end(starts, begin, size))
    return bounds
