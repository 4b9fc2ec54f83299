"""Work on groups of problems within a time, which one slow problem does not use up."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import Final, TypeAlias

from kgverify.interrupts import OutOfTime, stop_after

SHARE: Final = 0.1
"""The largest share of the time for one group. The problems of a slower group are tried one by one."""

Group: TypeAlias = Sequence[int]
"""Problems that share a run, by their indices."""


def work_in_time(
    groups: Iterable[Group], seconds: float, work: Callable[[Group], bool], most: float | None = None
) -> list[int]:
    """Call `work` with one group after another, until it returns False or the time is over.

    Return the problems that were too slow. A call is interrupted if it takes more than `most` seconds, by default its share of
    the time (see `stop_after`).
    """
    most = SHARE * seconds if most is None else most
    waiting, slow, begun = deque(groups), list[int](), monotonic()
    while waiting and (left := seconds - (monotonic() - begun)) > 0:
        group = waiting.popleft()
        try:
            with stop_after(min(left, most)):
                goes_on = work(group)
        except OutOfTime:
            if len(group) > 1:
                waiting.extendleft([i] for i in reversed(group))
            elif left > most:
                slow += group
        else:
            if not goes_on:
                break
    return slow
