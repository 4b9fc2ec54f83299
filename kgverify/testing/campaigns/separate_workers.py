"""Worker processes of which one may end without the others."""

import signal
from collections.abc import Callable
from concurrent.futures import Executor, Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Final, TypeVar

from kgverify.runs.workers import find_process, single_threaded, start_workers

T = TypeVar("T")

MOST_KILLS: Final = 4
"""Times that a process may be killed at the same work before the work counts as the reason."""

_SENT_FROM_OUTSIDE: Final = frozenset(
    -getattr(signal, name) for name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name)
)


def weigh_end(exit_code: int) -> int:
    """Return how much the end of a process counts, of `MOST_KILLS`: a kill may come from outside, any other end cannot."""
    return 1 if exit_code in _SENT_FROM_OUTSIDE else MOST_KILLS


def describe_end(exit_code: int) -> str:
    """Return how a process ended: `exit code 1`, or the name of a signal."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    return signal.Signals(-exit_code).name if -exit_code in set(signal.Signals) else f"signal {-exit_code}"


class SeparateWorkers(Executor):
    """Processes that each do one call at a time, and of which one may end without the others.

    The future of a call whose process ended raises BrokenProcessPool; `replace` starts another process.
    """

    def __init__(self, jobs: int) -> None:
        self._settings = ExitStack()
        self._settings.enter_context(single_threaded())
        self._workers = [_Worker() for _ in range(jobs)]

    def submit(self, function: Callable[..., T], /, *arguments: object, **named: object) -> Future[T]:
        """Give a call to a process that has none."""
        worker = next(each for each in self._workers if each.call is None or each.call.done())
        try:
            worker.call = future = worker.executor.submit(function, *arguments, **named)
        except BrokenProcessPool:
            # It was killed while it had nothing to do.
            worker.restart()
            worker.call = future = worker.executor.submit(function, *arguments, **named)
        return future

    def replace(self, future: Future[Any]) -> int:
        """Start another process instead of the one that ended during a call, and return its exit code."""
        worker = next(each for each in self._workers if each.call is future)
        return worker.restart()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        """End the processes, at once after a KeyboardInterrupt."""
        for worker in self._workers:
            worker.end(kind, error, traceback)
        self._settings.close()
        return None


class _Worker:
    """A process with an executor of its own; `call` is the last one given to it."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self.call: Future[Any] | None = None
        self._context = start_workers(1)
        self.executor = self._context.__enter__()
        self._process = find_process(self.executor)

    def restart(self) -> int:
        """Replace the process, and return the exit code of the last one."""
        self._context.__exit__(None, None, None)
        exit_code = self._process.exitcode
        self._start()
        return 0 if exit_code is None else exit_code

    def end(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the process."""
        self._context.__exit__(kind, error, traceback)
