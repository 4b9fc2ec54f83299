"""Delta debugging: remove items from a failing list until every remaining item is needed.

Source: Zeller and Hildebrandt, Simplifying and isolating failure-inducing input, IEEE TSE 28(2), 2002.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from stepaudit.environment import read_cpu_seconds

T = TypeVar("T")


def minimize(items: Sequence[T], still_fails: Callable[[tuple[T, ...]], bool]) -> tuple[T, ...]:
    """Return a failing part of a failing list, in order, from which no single item can be removed."""
    kept, size = tuple(items), len(items)
    while size:
        num_before, start = len(kept), 0
        while start < len(kept):
            rest = kept[:start] + kept[start + size :]
            if still_fails(rest):
                kept = rest
            else:
                start += size
        # Try smaller blocks only when no block of this size can be removed any more.
        size = min(size, len(kept)) if len(kept) < num_before else size // 2
    return kept


class Attempts:
    """The attempts of a search.

    num:         the number of attempts so far
    is_complete: False if time ran out before an attempt
    seconds:     the CPU time after which no attempt begins
    announce:    receives the number of each attempt
    """

    def __init__(self, seconds: float, announce: Callable[[int], None]) -> None:
        self.num, self.is_complete = 0, True
        self._deadline, self._announce = read_cpu_seconds() + seconds, announce

    def begin(self) -> bool:
        """Begin an attempt. Return whether there is time for it."""
        self.is_complete = self.is_complete and read_cpu_seconds() <= self._deadline
        if self.is_complete:
            self.num += 1
            self._announce(self.num)
        return self.is_complete
