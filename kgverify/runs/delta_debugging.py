"""Delta debugging: remove items from a failing list until every remaining item is needed.

Source: Zeller and Hildebrandt, Simplifying and isolating failure-inducing input, IEEE TSE 28(2), 2002.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Final, Protocol, TypeVar

T = TypeVar("T")
U = TypeVar("U", contravariant=True)

MOST_CONFIRMED: Final = 3
"""The number of large removable blocks that are tried separately before smaller ones are removed together."""


class Sift(Protocol[U]):
    """A test of many attempts at once. It must find the attempts that fail, and may report some that do not."""

    def capacity(self, kept: tuple[U, ...]) -> int:
        """Return how many attempts, each about as large as `kept`, fit in one batch."""

    def find_suspects(self, attempts: Sequence[tuple[U, ...]], kept: tuple[U, ...]) -> Iterable[int]:
        """Yield the indices of the attempts that may fail, in order; `kept` is known to fail."""


def minimize(
    items: Sequence[T], still_fails: Callable[[tuple[T, ...]], bool], sift: Sift[T] | None = None
) -> tuple[T, ...]:
    """Return a part of a failing list, in order, that fails and from which no single item can be removed.

    Args:
        items: A list that is known to fail.
        still_fails: Whether a part of the list fails; the empty list is tried as well.
        sift: A test of many attempts at once. Without it, one attempt is tried after the other.
    """
    kept = tuple(items)
    sizes = _halve(len(kept))
    while sizes and kept:
        if sift is None:
            num_tried, largest = 1, sizes[0]
            left = _remove_in_turn(kept, _split(len(kept), largest), still_fails)
        else:
            num_tried = _count_fitting(sizes, len(kept), sift.capacity(kept))
            left = _remove_together(kept, sizes[:num_tried], still_fails, sift)
            largest = len(left)
        if left == kept:
            sizes = sizes[num_tried:]
        else:
            kept = left
            sizes = [size for size in _halve(len(kept)) if size <= largest]
    return kept


def halve(items: Sequence[T], fails: Callable[[list[T]], bool], first: T | None = None) -> list[T]:
    """Return the smallest failing part of a failing list that halving finds. Try the halves that contain `first` first."""
    kept = list(items)
    while len(kept) > 1:
        middle = len(kept) // 2
        halves = sorted((kept[:middle], kept[middle:]), key=lambda half: first not in half)
        failing = next(filter(fails, halves), None)
        if failing is None:
            break
        kept = failing
    return kept


def count_down(num: int) -> list[int]:
    """Return how many of `num` blocks to remove together in each attempt: first all, then fewer and fewer, down to one."""
    if num <= 32:
        return list(range(num, 0, -1))
    counts = [num]
    while counts[-1] > 1:
        counts.append(counts[-1] * 7 // 8)
    return counts


def _halve(num: int) -> list[int]:
    return [num >> i for i in range(num.bit_length())]


def _count_fitting(sizes: Sequence[int], num: int, capacity: int) -> int:
    """Count the block sizes, at least one, whose blocks all fit in one batch."""
    totals = accumulate(len(_split(num, size)) for size in sizes)
    return max(1, sum(total <= capacity for total in totals))


def _split(num: int, size: int) -> list[frozenset[int]]:
    return [frozenset(range(at, min(at + size, num))) for at in range(0, num, size)]


def _remove_in_turn(
    kept: tuple[T, ...], blocks: Sequence[frozenset[int]], still_fails: Callable[[tuple[T, ...]], bool]
) -> tuple[T, ...]:
    removed: frozenset[int] = frozenset()
    for block in blocks:
        if still_fails(_without(kept, removed | block)):
            removed |= block
    return _without(kept, removed)


def _remove_together(
    kept: tuple[T, ...],
    sizes: Sequence[int],
    still_fails: Callable[[tuple[T, ...]], bool],
    sift: Sift[T],
) -> tuple[T, ...]:
    """Try to keep only, and to remove, each block of every size; then remove as many removable blocks as possible."""
    every = frozenset(range(len(kept)))
    blocks = [block for size in sizes for block in _split(len(kept), size)]
    # The attempts that keep the fewest items come first.
    tried = sorted(
        {*(every - block for block in blocks), *blocks} - {frozenset()}, key=lambda block: (-len(block), sorted(block))
    )
    removable = [tried[i] for i in sift.find_suspects([_without(kept, block) for block in tried], kept)]
    for block in removable[:MOST_CONFIRMED]:
        if len(block) > 1 and still_fails(left := _without(kept, block)):
            return left
    smallest = [block for block in removable if not any(other < block for other in removable)]
    unions = [frozenset().union(*smallest[:n]) for n in count_down(len(smallest))]
    unions += smallest[1:]
    attempts = list(dict.fromkeys(_without(kept, union) for union in unions))
    return next((attempts[i] for i in sift.find_suspects(attempts, kept) if still_fails(attempts[i])), kept)


def _without(items: tuple[T, ...], removed: frozenset[int]) -> tuple[T, ...]:
    return tuple(item for i, item in enumerate(items) if i not in removed)
