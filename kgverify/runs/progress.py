"""How long work tells of its progress."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from kgverify.engines.protocol import Progress, no_progress

Phase = Callable[[str, int], AbstractContextManager[Progress]]
"""(what begins, how many candidates it takes) -> a context that is told of each candidate finished."""


def silent_phase(title: str, total: int) -> AbstractContextManager[Progress]:
    """Report nothing."""
    return nullcontext(no_progress)
