"""The units of a part that several processes prove together. They depend on the part alone, and so does the result."""

from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

UNITS: Final = 8
"""The most units that are proved at once."""


class Share(Protocol):
    """The units that one process proves. leads: whether it also counts the true triples, which every process proves."""

    leads: bool

    def take(self, units: str, num: int) -> range:
        """Return the next units of a list of `num` to prove; none if none is left."""
        ...


class Whole:
    """Every unit of a part. `begins_small`: whether the engine waits for the first one, which is therefore taken alone."""

    leads = True

    def __init__(self, *, begins_small: bool) -> None:
        self._begins_small = begins_small
        self._taken: Counter[str] = Counter()

    def take(self, units: str, num: int) -> range:
        """Return the next units. Of many, the last one is taken alone, since the end waits for its comparison."""
        begin, is_long = self._taken[units], num > 2 * UNITS
        most = 1 if self._begins_small and is_long and not self._taken.total() else UNITS
        left = num - begin
        self._taken[units] += min(most, left - 1 if is_long and left > 1 else left)
        return range(begin, self._taken[units])


class Shared:
    """The units that one of several processes proves.

    add: adds to a counter that all processes share, and returns its new value; number: of the part; size: of the group
    """

    def __init__(self, add: Callable[[str, int], int], number: int, size: int, *, leads: bool) -> None:
        self._add, self._number, self._size, self.leads = add, number, size, leads

    def take(self, units: str, num: int) -> range:
        """Return the next units, of long lists several, and fewer towards the end, so that all processes end alike."""
        counter = f"{units} of part {self._number}"
        wanted = max(1, min(UNITS, (num - self._add(counter, 0)) // (2 * self._size)))
        begin = self._add(counter, wanted) - wanted
        return range(min(begin, num), min(begin + wanted, num))
