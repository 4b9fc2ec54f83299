"""Worker processes of which one may end without the others."""

import signal
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from queue import SimpleQueue
from threading import Lock
from types import TracebackType
from typing import Any, Final, TypeVar

from kgverify.errors import UserError
from kgverify.runs.workers import find_process, start_workers

T = TypeVar("T")

MOST_KILLS: Final = 4
"""Times that a process may be killed at the same work before the work counts as the reason."""
MOST_REPEATS: Final = 12
"""Times that a call is begun if its process is killed: kills may come while a process starts, and prove nothing then."""

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
        self._workers = [_Worker() for _ in range(jobs)]

    def submit(self, function: Callable[..., T], /, *arguments: object, **named: object) -> Future[T]:
        """Give a call to a process that has none."""
        worker = next(each for each in self._workers if each.is_free)
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
        with ThreadPoolExecutor(len(self._workers)) as threads:
            # A process with a large program takes long to end.
            for _ in threads.map(lambda worker: worker.end(kind, error, traceback), self._workers):
                pass
        return None


class RepeatingWorkers(SeparateWorkers):
    """Processes of which one that is killed is replaced, and its call repeated; `submit` takes any number of calls.

    The future of a call that ends its process, or is killed `MOST_REPEATS` times, raises UserError.
    """

    def __init__(self, jobs: int) -> None:
        super().__init__(jobs)
        self._free: SimpleQueue[_Worker] = SimpleQueue()
        for worker in self._workers:
            self._free.put(worker)
        self._threads = ThreadPoolExecutor(jobs)
        self._is_ending, self._restarts = False, Lock()

    def submit(self, function: Callable[..., T], /, *arguments: object, **named: object) -> Future[T]:
        """Give a call to the next process that is free."""
        return self._threads.submit(self._do, function, arguments, named)

    def _do(self, function: Callable[..., T], arguments: tuple[object, ...], named: Mapping[str, object]) -> T:
        worker, weight = self._free.get(), 0
        try:
            while True:
                try:
                    return worker.executor.submit(function, *arguments, **named).result()
                except BrokenProcessPool:
                    with self._restarts:
                        if self._is_ending:
                            raise
                        exit_code = worker.restart()
                    weight += 1 if weigh_end(exit_code) < MOST_KILLS else MOST_REPEATS
                    if weight >= MOST_REPEATS:
                        times = "" if weigh_end(exit_code) == MOST_KILLS else f" {weight} times"
                        raise UserError(
                            f"a worker died{times} before its work was done ({describe_end(exit_code)})",
                            where="jobs",
                            fix="use fewer, as each needs memory of its own, or --jobs 1 to see it die",
                        ) from None
        finally:
            self._free.put(worker)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        """End the processes when their calls are done, at once after a KeyboardInterrupt."""
        with self._restarts:
            self._is_ending = kind is not None and issubclass(kind, KeyboardInterrupt)
        self._threads.shutdown(wait=not self._is_ending, cancel_futures=self._is_ending)
        return super().__exit__(kind, error, traceback)


class _Worker:
    """A process with an executor of its own; `call` is the last one given to it."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self.call: Future[Any] | None = None
        self._context = start_workers(1)
        self.executor = self._context.__enter__()
        self._process = find_process(self.executor)

    @property
    def is_free(self) -> bool:
        """True if it can take a call: it has none, and its process has not ended during the last one."""
        call = self.call
        return call is None or (call.done() and not isinstance(call.exception(), BrokenProcessPool))

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
