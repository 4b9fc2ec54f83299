"""One pool for calls in threads, in processes or on machines. A call lost with its worker is repeated, and finally reported.

The result of a call depends only on its arguments. A call may therefore run again.
"""

import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from multiprocessing.context import SpawnContext, SpawnProcess
from multiprocessing.process import BaseProcess
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

import xxhash

from kgverify.errors import UserError
from kgverify.interrupts import expect_no_interrupt

K = TypeVar("K")
T = TypeVar("T")

MOST_KILLS: Final = 4
"""The number of times that a process may be killed during the same work before the work is considered the cause."""
MOST_REPEATS: Final = 12
"""The number of times that a call is begun if its worker is lost. A kill during the start shows nothing about the call."""

_POLL_SECONDS: Final = 0.1
_SENT_FROM_OUTSIDE: Final = frozenset(
    -getattr(signal, name) for name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name)
)
_NUM_THREADS: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""The variables that a process reads when it loads torch, before a call can set them."""
_SAFE_PATH: Final = "PYTHONSAFEPATH"
"""The variable that keeps Python from searching the current folder for modules.

The folder may be a stranger's, and Python searches it first until the process has received its parent's path.
"""
_EXIT: Final = os._exit
"""The function itself, since another one takes its place while an engine is imported."""
_changing: Final = threading.Lock()
_of_thread: Final = threading.local()


class WorkerLost(UserError):
    """A call was lost with its worker.

    weight:    how much the loss counts towards `MOST_REPEATS`: 0 if it shows nothing about the call
    exit_code: the exit code of the worker's process, if known
    """

    def __init__(self, end: str, *, weight: int, exit_code: int | None = None, where: str, fix: str) -> None:
        super().__init__(f"a worker died before its work was done ({end})", where=where, fix=fix)
        self.end, self.weight, self.exit_code = end, weight, exit_code


class Workers(Executor):
    """An executor with the methods that `Calls` needs. The future of a call lost with its worker raises `WorkerLost`."""

    def count(self) -> int:
        """Return the number of calls that run at the same time, at least 1."""
        return 1

    def share(self, content: bytes) -> Any:
        """Return an argument that `make_once` receives as these bytes, or as empty bytes if the worker already has them."""
        return content


class Here(Workers):
    """Workers that do the work immediately, in this process."""

    def submit(self, function: Callable[..., T], /, *arguments: object, **named: object) -> Future[T]:
        """Return a finished future of the call's result."""
        future: Future[T] = Future()
        future.set_result(function(*arguments, **named))
        return future


class Calls(Generic[K]):
    """Calls under way, each with a key. The calls that have not begun are cancelled when the context ends.

    retry: takes the key and exit code of a call whose process ended, and returns the function and arguments to call instead;
           without it, a lost call is repeated until its losses weigh `MOST_REPEATS`
    """

    def __init__(
        self,
        workers: Workers,
        retry: Callable[[K, int], tuple[Callable[..., Any], tuple[object, ...]]] | None = None,
    ) -> None:
        self._workers, self._retry = workers, retry
        self.running: dict[K, _Call] = {}
        self._ended: SimpleQueue[tuple[K, Future[Any]]] = SimpleQueue()

    def begin(self, key: K, function: Callable[..., Any], *arguments: object) -> None:
        """Begin a call, or queue it until a worker is free."""
        self.running[key] = _Call(function, arguments)
        self._send(key)

    def take(self, seconds: float = _POLL_SECONDS) -> tuple[K, Any] | None:
        """Return the key and the result of a finished call; None if no call finished in this time.

        The error of a call is raised here. UserError for a call that repeatedly ends its workers.
        """
        try:
            key, future = self._ended.get(timeout=seconds)
        except Empty:
            self._look_after()
            return None
        call = self.running.get(key)
        if call is None or future is not call.future or future.cancelled():
            return None
        call.future = None
        try:
            result = future.result()
        except WorkerLost as lost:
            if self._retry is not None and lost.exit_code is not None:
                call.function, call.arguments = self._retry(key, lost.exit_code)
            else:
                call.weight += lost.weight
                if call.weight >= MOST_REPEATS:
                    times = "" if lost.weight >= MOST_REPEATS else f"{call.weight} times "
                    raise UserError(
                        f"a worker died {times}before its work was done ({lost.end})", where=lost.where, fix=lost.fix
                    ) from None
            self._send(key)
            return None
        del self.running[key]
        return key, result

    def cancel(self) -> None:
        """Cancel the calls that have not begun."""
        self.running = {key: call for key, call in self.running.items() if call.future and not call.future.cancel()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.cancel()

    def _send(self, key: K) -> None:
        call = self.running[key]
        call.future = future = self._workers.submit(call.function, *call.arguments)
        future.add_done_callback(lambda ended: self._ended.put((key, ended)))

    def _look_after(self) -> None:
        """Find finished calls that an interrupt may have hidden, and send again those that it kept from being sent."""
        for key, call in self.running.items():
            if call.future is None:
                self._send(key)
            elif call.future.done():
                self._ended.put((key, call.future))


class _Call:
    """An unfinished call. weight: the weight of its losses."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[object, ...]) -> None:
        self.function, self.arguments = function, arguments
        self.future: Future[Any] | None = None
        self.weight = 0


def do_all(
    workers: Workers,
    calls: Iterable[tuple[K, Callable[..., Any], tuple[object, ...]]],
    most_ahead: Callable[[], int] | None = None,
) -> Iterator[tuple[K, Any] | None]:
    """Do calls, and yield the key and the result of each as it ends; None whenever no call ended for a while.

    most_ahead: returns the maximum number of calls under way, with at least one; without it, there is no limit

    Errors as for `Calls.take`.
    """
    waiting = iter(calls)
    with Calls[K](workers) as under_way:
        while True:
            room = None if most_ahead is None else max(0, max(1, most_ahead()) - len(under_way.running))
            for key, function, arguments in islice(waiting, room):
                under_way.begin(key, function, *arguments)
            if not under_way.running:
                return
            yield under_way.take()


def send_maker(make: Callable[[], Any], workers: Workers) -> tuple[Any, str]:
    """Return two arguments for calls on workers. There, `make_once` takes them and returns what `make` makes.

    make: makes an engine, or anything else that the work needs; it must be picklable: a function or class of a module, with
          picklable arguments
    """
    content = pickle.dumps(make)
    return workers.share(content), xxhash.xxh3_128_hexdigest(content)


def make_once(content: bytes, name: str) -> Any:
    """Call the function once in each thread and return its result, which is kept until another function is needed."""
    if getattr(_of_thread, "name", None) != name:
        # The previous object may take as much memory.
        _of_thread.made = _of_thread.name = None
        _of_thread.made = pickle.loads(content)()
        _of_thread.name = name
    return _of_thread.made


def weigh_end(exit_code: int) -> int:
    """Return how much the end of a process counts towards `MOST_KILLS`. Only a kill may come from outside."""
    return 1 if exit_code in _SENT_FROM_OUTSIDE else MOST_KILLS


def describe_end(exit_code: int) -> str:
    """Return how a process ended: `exit code 1`, or the name of a signal."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    return signal.Signals(-exit_code).name if -exit_code in set(signal.Signals) else f"signal {-exit_code}"


class Processes(Workers):
    """Processes on this machine, each with one thread. If one ends, the others continue.

    They ignore Ctrl-C, and exit with their parent. A KeyboardInterrupt that leaves the context ends them immediately.

    imports_main: whether they import the user's script again, so that they know its functions
    """

    def __init__(self, jobs: int, *, imports_main: bool = True) -> None:
        self._processes = [_Process(_Context() if imports_main else _ContextWithoutMain()) for _ in range(jobs)]
        self._free: SimpleQueue[_Process] = SimpleQueue()
        for each in self._processes:
            self._free.put(each)
        self._threads = ThreadPoolExecutor(jobs)
        self._is_ended = False

    def submit(self, function: Callable[..., T], /, *arguments: object, **named: object) -> Future[T]:
        """Give a call to the next free process."""
        return self._threads.submit(self._do, function, arguments, named)

    def count(self) -> int:
        """Return the number of processes."""
        return len(self._processes)

    def share(self, content: bytes) -> Any:
        """Return an argument that each process receives as these bytes once."""
        return _Shared(content)

    def _do(self, function: Callable[..., T], arguments: tuple[object, ...], named: dict[str, object]) -> T:
        process = self._free.get()
        try:
            return process.do(function, arguments, named)
        except BrokenProcessPool:
            if self._is_ended:
                raise
            exit_code = process.end()
            weight = 1 if weigh_end(exit_code) < MOST_KILLS else MOST_REPEATS
            raise WorkerLost(
                describe_end(exit_code),
                weight=weight,
                exit_code=exit_code,
                where="jobs",
                fix="use fewer, as each needs memory of its own, or --jobs 1 to see it die",
            ) from None
        finally:
            self._free.put(process)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        """End the processes when their calls are done, or immediately after a KeyboardInterrupt."""
        self._is_ended = kind is not None and issubclass(kind, KeyboardInterrupt)
        if self._is_ended:
            for each in self._processes:
                each.kill()
        self._threads.shutdown(cancel_futures=self._is_ended)
        with ThreadPoolExecutor(len(self._processes)) as threads:
            # A process with a large program is slow to end.
            for each in self._processes:
                threads.submit(each.executor.shutdown)
        return None


class _Shared:
    """Bytes that a process receives with the first of several calls."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def send(self, known: "Sequence[_Shared]") -> bytes:
        """Return the bytes; empty bytes for a process that already has them."""
        return b"" if self in known else self._content


class _Process:
    """A process with its own executor, which does one call at a time."""

    _known: "tuple[_Shared, ...]" = ()

    def __init__(self, context: SpawnContext) -> None:
        self._context = context
        self._start()

    def do(self, function: Callable[..., T], arguments: Sequence[object], named: dict[str, object]) -> T:
        """Do a call, in a new process if the last one has ended."""
        try:
            future = self._submit(function, arguments, named)
        except BrokenProcessPool:
            self._start()
            future = self._submit(function, arguments, named)
        # A failed call may leave anything behind.
        self._known = ()
        result = future.result()
        self._known = tuple(each for each in arguments if isinstance(each, _Shared))
        return result

    def _submit(self, function: Callable[..., T], arguments: Sequence[object], named: dict[str, object]) -> Future[T]:
        given = (each.send(self._known) if isinstance(each, _Shared) else each for each in arguments)
        return self.executor.submit(function, *given, **named)

    def end(self) -> int:
        """Wait until a process that failed during a call has ended, and return its exit code."""
        self.executor.shutdown()
        return self._process.exitcode or 0

    def kill(self) -> None:
        """End the process."""
        self._process.terminate()

    def _start(self) -> None:
        self._known = ()
        # Do not fork, which would lose torch's threads. The executor starts a process that tracks its semaphores.
        own = os.environ.get(_SAFE_PATH)
        with _changing, _environment((_SAFE_PATH,)):
            self.executor = ProcessPoolExecutor(1, mp_context=self._context, initializer=_begin, initargs=(own,))
        _start_process(self.executor)
        processes: dict[int, BaseProcess] = self.executor._processes  # type: ignore[assignment]
        (self._process,) = processes.values()


class _SpawnedProcess(SpawnProcess):
    """A process that uses one thread, and searches for modules only where its parent searches."""

    def start(self) -> None:
        """Start the process."""
        with _changing, _environment((*_NUM_THREADS, _SAFE_PATH)):
            super().start()


class _Context(SpawnContext):
    Process = _SpawnedProcess


class _ProcessWithoutMain(_SpawnedProcess):
    """A process that does not import the user's script, which may lack the guard `if __name__ == "__main__"`."""

    def start(self) -> None:
        """Start the process."""
        main = vars(sys.modules["__main__"])
        hidden = {name: main.get(name) for name in ("__spec__", "__file__")}
        main |= dict.fromkeys(hidden)
        try:
            super().start()
        finally:
            main |= hidden


class _ContextWithoutMain(SpawnContext):
    Process = _ProcessWithoutMain


@contextmanager
def _environment(names: Iterable[str]) -> Iterator[None]:
    """Set environment variables to 1 until the context ends, which must be soon, since this process reads them too."""
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(before, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _start_process(executor: Executor) -> None:
    """Start a process with SIGINT ignored, or blocked by a thread: this process decides when it ends."""
    if threading.current_thread() is not threading.main_thread():
        if hasattr(signal, "pthread_sigmask"):
            # Only the main thread handles signals, and processes inherit the blocked ones.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        executor.submit(int)
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        executor.submit(int)
    finally:
        signal.signal(signal.SIGINT, before)


def _begin(safe_path: str | None) -> None:
    """Exit when the parent is killed, instead of waiting for work forever.

    safe_path: the earlier value of the variable that the parent changed for the start, since an engine may start Python itself
    """
    if safe_path is None:
        os.environ.pop(_SAFE_PATH, None)
    end_with_parent()


def end_with_parent() -> None:
    """Let this process exit when its parent ends, and attribute every KeyboardInterrupt to an engine."""
    expect_no_interrupt()
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_wait_and_exit, args=(parent.sentinel,), daemon=True).start()


def _wait_and_exit(sentinel: int) -> None:
    from multiprocessing.connection import wait

    wait([sentinel])
    _EXIT(1)
