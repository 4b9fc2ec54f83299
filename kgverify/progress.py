"""Callbacks that report progress, and the logger."""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from time import perf_counter
from typing import Final

LOGGER: Final = logging.getLogger("kgverify")
"""The logger of kgverify; silent unless the user adds a handler, as `kgverify -v` does."""
LOGGER.addHandler(logging.NullHandler())

Progress = Callable[[int], None]
"""A function called with the number of candidates finished since the last call."""


def no_progress(num_finished: int) -> None:
    """Report nothing."""


Phase = Callable[[str, int], AbstractContextManager[Progress]]
"""(title of a phase, its number of candidates) -> a context whose value is called as a `Progress`."""


def silent_phase(title: str, total: int) -> AbstractContextManager[Progress]:
    """Report nothing."""
    return nullcontext(no_progress)


show_part: Final[ContextVar[Callable[[str, str], None]]] = ContextVar("show_part", default=lambda title, time: None)
"""The function that shows a slow part of the current phase and the time that it takes; two empty texts end it."""


@contextmanager
def slow_part(title: str, time: str) -> Iterator[None]:
    """Name a slow part of the current phase, such as a compilation, and the time that it takes.

    The part is shown by the progress bar, and logged.
    """
    LOGGER.info("%s takes %s", title, time)
    show = show_part.get()
    show(title, time)
    try:
        yield
    finally:
        show("", "")


class TimedPhases:
    """A `Phase` that also sums the seconds of the phases by their titles.

    seconds: the seconds by title, in the order in which the phases ended
    """

    def __init__(self, phase: Phase) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._phase = phase

    @contextmanager
    def __call__(self, title: str, total: int) -> Iterator[Progress]:
        """Enter the phase. Its seconds are added when it ends, even with an error."""
        started = perf_counter()
        try:
            with self._phase(title, total) as progress:
                yield progress
        finally:
            self.seconds[title] += perf_counter() - started
