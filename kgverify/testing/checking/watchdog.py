"""A limit on the CPU time of an engine: one that exceeds it hangs.

Python code is stopped by an exception. Native code cannot be: a process that may be replaced ends itself.
"""

import faulthandler
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TextIO

from kgverify.engines.sizes import Sizes
from kgverify.errors import KgverifyError
from kgverify.runs.run import Run
from kgverify.testing.checking.failure import CRASH, HANG

SECONDS: Final = 10.0
SECONDS_OF_TICK: Final = 0.01
"""Several times what a tick takes on one core."""
PATIENCE: Final = 30
"""The factor for engines that may compile, or whose speed is unknown."""
NATIVE_PATIENCE: Final = 10
"""Seconds of real time in which a second of CPU time certainly passes."""

_nothing: TextIO | None = None
"""The file for the last traceback of a process that may be replaced."""


class EngineCrash(KgverifyError):
    """An engine raised an exception, ended the process, or returned an invalid result.

    situation: the exception's type, with the role of the engine if it is not the one under test
    """

    kind = CRASH

    def __init__(self, message: str, situation: str) -> None:
        self.situation = situation
        super().__init__(message)


class EngineHang(EngineCrash):
    """The engine under test did not return in time."""

    kind = HANG

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no result within {seconds:,.0f} seconds of CPU time", "")


def find_limit(run: Run, sizes: Sizes, num_candidates: int, mode: str) -> float:
    """Return the seconds of CPU time in which an engine certainly derives candidates of a run."""
    num_clauses = len(run.graph.train) + len(run.graph.rules)
    ticks_of_step = 1 + num_clauses / sizes.match_window
    turns = 1 + num_candidates / min(sizes.slots, sizes.pool)
    seconds = SECONDS + SECONDS_OF_TICK * run.limits.max_depth * turns * ticks_of_step
    return seconds * (1 if mode == "eager" else PATIENCE)


@contextmanager
def limit_time(seconds: float) -> Iterator[None]:
    """Raise EngineHang in the main thread after seconds of the process's CPU time; elsewhere, set no limit."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise EngineHang(seconds)

    before = signal.signal(signal.SIGVTALRM, stop)
    # Again and again, since an engine may catch the exception.
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, 1.0)
    if _nothing is not None:
        faulthandler.dump_traceback_later(NATIVE_PATIENCE * seconds, exit=True, file=_nothing)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        if _nothing is not None:
            faulthandler.cancel_dump_traceback_later()


@contextmanager
def in_replaceable_process() -> Iterator[None]:
    """Let this process end itself where an engine does not return from native code."""
    global _nothing
    with Path(os.devnull).open("w", encoding="utf-8") as _nothing:
        try:
            yield
        finally:
            _nothing = None
