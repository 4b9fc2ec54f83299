"""Delta debugging: remove items from a failing list until every one that remains is needed.

Source: Zeller and Hildebrandt, Simplifying and isolating failure-inducing input, IEEE TSE 28(2), 2002.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def minimize(items: Sequence[T], still_fails: Callable[[tuple[T, ...]], bool]) -> tuple[T, ...]:
    """Return a part of a failing list, in order, that fails and from which no single item can be removed."""
    kept, size = tuple(items), len(items)
    while size:
        num_before, start = len(kept), 0
        while start < len(kept):
            rest = kept[:start] + kept[start + size :]
            if still_fails(rest):
                kept = rest
            else:
                start += size
        # Smaller blocks only when no block of this size can be removed any more.
        size = min(size, len(kept)) if len(kept) < num_before else size // 2
    return kept
