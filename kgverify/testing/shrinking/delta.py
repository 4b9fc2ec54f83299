"""Delta debugging: as few of a problem's facts, rules or queries as may be, many blocks of them tried in one run.

Source: Zeller and Hildebrandt, Simplifying and isolating failure-inducing input, IEEE TSE 28(2), 2002.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from kgverify.testing.problems.problem import Problem
from kgverify.testing.shrinking.oracle import LARGEST_RUN, Oracle

T = TypeVar("T")

MOST_CONFIRMED: Final = 3
"""Of the blocks that may be left out, so many of the largest are tried alone before smaller ones are left out together."""


def fewer_of(
    problem: Problem, oracle: Oracle, items: Sequence[T], rebuild: Callable[[tuple[T, ...]], Problem | None]
) -> Problem:
    """The problem with as few of the items as may be.

    Where problems can share a run, blocks of all sizes for which there is room are tried in one: each kept by itself, and
    each left out; those that can be left out are left out together, as many as will go. Else one block after the other.
    """
    kept = tuple(items)
    sizes = _halves(len(kept))
    while sizes and kept:
        if oracle.can_share:
            num_tried = _fitting(sizes, len(kept), LARGEST_RUN // max(1, oracle.weigh(problem)) - 1)
            left, smaller = _leave_out_together(problem, oracle, kept, sizes[:num_tried], rebuild)
            largest = len(left)
        else:
            num_tried, largest = 1, sizes[0]
            left, smaller = _leave_out_in_turn(problem, oracle, kept, _blocks(len(kept), largest), rebuild)
        if left == kept:
            sizes = sizes[num_tried:]
        else:
            problem, kept = smaller, left
            sizes = [size for size in _halves(len(kept)) if size <= largest]
    return problem


def _halves(num: int) -> list[int]:
    sizes = []
    while num:
        sizes.append(num)
        num //= 2
    return sizes


def _fitting(sizes: Sequence[int], num: int, most: int) -> int:
    """How many of the sizes have blocks of which a run holds all."""
    count = 1
    while count < len(sizes) and sum(len(_blocks(num, size)) for size in sizes[: count + 1]) <= most:
        count += 1
    return count


def _blocks(num: int, size: int) -> list[frozenset[int]]:
    return [frozenset(range(at, min(at + size, num))) for at in range(0, num, size)]


def _leave_out_together(
    problem: Problem,
    oracle: Oracle,
    kept: tuple[T, ...],
    sizes: Sequence[int],
    rebuild: Callable[[tuple[T, ...]], Problem | None],
) -> tuple[tuple[T, ...], Problem]:
    every = frozenset(range(len(kept)))
    blocks = [block for size in sizes for block in _blocks(len(kept), size)]
    # The smallest rest first.
    tried = sorted(
        {*(every - block for block in blocks), *blocks} - {frozenset()}, key=lambda left: (-len(left), sorted(left))
    )
    attempts = [(left, built) for left in tried if (built := rebuild(_without(kept, left))) is not None]
    places = oracle.sift([built for _, built in attempts], problem)
    removable = [attempts[i][0] for i in places]
    for block in removable[:MOST_CONFIRMED]:
        if len(block) > 1 and (built := rebuild(_without(kept, block))) is not None and oracle.holds(built):
            return _without(kept, block), built
    smallest = [block for block in removable if not any(other < block for other in removable)]
    unions = [frozenset().union(*smallest[:n]) for n in counts_down(len(smallest))]
    unions += smallest[1:]
    rebuilt = {again: left for union in unions if (again := rebuild(left := _without(kept, union))) is not None}
    found = oracle.first(list(rebuilt), problem)
    return (kept, problem) if found is None else (rebuilt[found], found)


def _leave_out_in_turn(
    problem: Problem,
    oracle: Oracle,
    kept: tuple[T, ...],
    blocks: Sequence[frozenset[int]],
    rebuild: Callable[[tuple[T, ...]], Problem | None],
) -> tuple[tuple[T, ...], Problem]:
    gone: frozenset[int] = frozenset()
    for block in blocks:
        attempt = rebuild(_without(kept, gone | block))
        if attempt is not None and oracle.holds(attempt):
            problem, gone = attempt, gone | block
    return _without(kept, gone), problem


def _without(items: tuple[T, ...], places: frozenset[int]) -> tuple[T, ...]:
    return tuple(item for i, item in enumerate(items) if i not in places)


def counts_down(num: int) -> list[int]:
    """How many of `num` blocks to leave out together: all, and ever fewer, down to one."""
    if num <= 32:
        return list(range(num, 0, -1))
    counts = {1, num}
    n = num
    while n > 1:
        n = n * 7 // 8
        counts.add(n)
    return sorted(counts - {0}, reverse=True)
