"""Worker processes of which one may end without the others."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from types import TracebackType
from typing import TypeVar

from kgverify.runs.workers import start_workers

T = TypeVar("T")


class SeparateWorkers(Executor):
    """Processes that each belong to an executor of their own, which is replaced if its process ends.

    The futures of a process that ended raise BrokenProcessPool.
    """

    def __init__(self, jobs: int) -> None:
        self._stack = ExitStack()
        self._executors = [self._stack.enter_context(start_workers(1)) for _ in range(jobs)]
        self._waiting: list[set[Future[object]]] = [set() for _ in range(jobs)]

    def submit(self, function: Callable[..., T], /, *arguments: object, **named: object) -> Future[T]:
        """Give a call to the process with the fewest."""
        for waiting in self._waiting:
            waiting.difference_update([future for future in waiting if future.done()])
        number = min(range(len(self._executors)), key=lambda i: len(self._waiting[i]))
        try:
            future = self._executors[number].submit(function, *arguments, **named)
        except BrokenProcessPool:
            self._executors[number] = self._stack.enter_context(start_workers(1))
            future = self._executors[number].submit(function, *arguments, **named)
        self._waiting[number].add(future)  # type: ignore[arg-type]
        return future

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        """End the processes, at once after a KeyboardInterrupt."""
        return self._stack.__exit__(kind, error, traceback)
