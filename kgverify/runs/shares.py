"""The units of a part that several processes prove together. They depend on the part alone, and so does the result."""

from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

UNITS: Final = 8
"""The most units that are proved at once."""


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
        """Return the next units. Of many, the first and the last are taken alone.

        The engine waits until the first is drawn, and the end until the last is compared.
        """
        begin, is_long = self._taken[name], num > 2 * UNITS
        most = 1 if is_long and not self._taken.total() else UNITS
        left = num - begin
        self._taken[name] += min(most, left - 1 if is_long and left > 1 else left)
        return range(begin, self._taken[name])


class Shared:
    """The units that one of several processes proves.

    add: adds to a counter that all processes share, and returns its new value; number: of the part; size: of the group
    """

    def __init__(self, add: Callable[[str, int], int], number: int, size: int, *, leads: bool) -> None:
        self._add, self._number, self._size, self.leads = add, number, size, leads

    def take(self, name: str, num: int) -> range:
        """Return the next units, of long lists several, and fewer towards the end, so that all processes end alike."""
        counter = f"{name} of part {self._number}"
        wanted = max(1, min(UNITS, (num - self._add(counter, 0)) // (2 * self._size)))
        begin = self._add(counter, wanted) - wanted
        return range(min(begin, num), min(begin + wanted, num))
