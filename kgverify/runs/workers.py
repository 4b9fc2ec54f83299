"""Worker processes: single-threaded; they ignore SIGINT and exit with their parent."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.context import SpawnContext, SpawnProcess
from multiprocessing.process import BaseProcess
from typing import Any, Final

from kgverify.interrupts import expect_no_interrupt

_NUM_THREADS: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""The variables that a process reads when it loads torch, before anything can be called there."""
_SAFE_PATH: Final = "PYTHONSAFEPATH"
"""The variable that keeps Python from searching the current folder for modules.

It may be a stranger's, and Python searches it first until the process has received the path of its parent.
"""
_changing: Final = threading.Lock()


@contextmanager
def _environment(names: Iterable[str]) -> Iterator[None]:
    """Set environment variables to 1 until the context ends, which must be soon: this process reads them too."""
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


class _Process(SpawnProcess):
    """A process that uses one thread, and searches for modules only where its parent does."""

    def start(self) -> None:
        """Start the process."""
        with _changing, _environment((*_NUM_THREADS, _SAFE_PATH)):
            super().start()


class _Context(SpawnContext):
    Process = _Process


@contextmanager
def start_workers(jobs: int) -> Iterator[Executor]:
    """Run `jobs` processes until the context ends. Only the process that started them receives Ctrl-C.

    A KeyboardInterrupt that leaves the context ends them at once.
    """
    # Not with a fork, which would lose torch's threads. The executor starts a process that tracks its semaphores.
    own = os.environ.get(_SAFE_PATH)
    with _changing, _environment((_SAFE_PATH,)):
        created = ProcessPoolExecutor(jobs, mp_context=_Context(), initializer=_begin, initargs=(own,))
    with created as executor:
        _start_processes(executor, jobs)
        try:
            yield executor
        except KeyboardInterrupt:
            # Nobody needs their results, and the executor would wait for them.
            _end_processes(executor)
            raise


def find_process(executor: Executor) -> BaseProcess:
    """Return the process of an executor that has only one, and has started it."""
    processes: Any = executor
    (process,) = processes._processes.values()
    found: BaseProcess = process
    return found


def _start_processes(executor: Executor, jobs: int) -> None:
    """Start all processes with SIGINT ignored, or blocked by a thread: this process decides when they end."""
    if threading.current_thread() is not threading.main_thread():
        if hasattr(signal, "pthread_sigmask"):
            # Only the main thread handles signals, and processes inherit what is blocked.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        before = None
    else:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        for _ in range(jobs):
            executor.submit(int)
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)


def _end_processes(executor: ProcessPoolExecutor) -> None:
    # Public from Python 3.14 on, as `terminate_workers`. A shutdown forgets the processes.
    processes = list((executor._processes or {}).values())
    executor.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.terminate()


def _begin(safe_path: str | None) -> None:
    """Exit when the parent is killed, instead of waiting for work forever; a KeyboardInterrupt is never a Ctrl-C here.

    safe_path: the variable that the parent had changed for the start; an engine may start Python itself
    """
    if safe_path is None:
        os.environ.pop(_SAFE_PATH, None)
    expect_no_interrupt()
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_wait_and_exit, args=(parent.sentinel,), daemon=True).start()


def _wait_and_exit(sentinel: int) -> None:
    from multiprocessing.connection import wait

    wait([sentinel])
    os._exit(1)
