"""Progress-reporting callbacks."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from kgverify.engines.protocol import Progress, no_progress

Phase = Callable[[str, int], AbstractContextManager[Progress]]
"""(title of a phase, its number of candidates) -> a context whose value is called with the number of candidates finished."""


def silent_phase(title: str, total: int) -> AbstractContextManager[Progress]:
    """Report nothing."""
    return nullcontext(no_progress)
