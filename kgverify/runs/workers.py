"""Worker processes: single-threaded; they ignore SIGINT and exit with their parent."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any, Final

from kgverify.runs.interrupts import expect_no_interrupt

_NUM_THREADS: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


@contextmanager
def single_threaded() -> Iterator[None]:
    """Let processes that start before the context ends use one thread each."""
    # A process reads these when it loads torch, before anything can be called there.
    before = {name: os.environ.get(name) for name in _NUM_THREADS}
    os.environ.update(dict.fromkeys(_NUM_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def start_workers(jobs: int) -> Iterator[Executor]:
    """Run `jobs` processes until the context ends. Only the process that started them receives Ctrl-C.

    A KeyboardInterrupt that leaves the context ends them at once.
    """
    # A fork would lose torch's threads.
    spawn = multiprocessing.get_context("spawn")
    with single_threaded(), ProcessPoolExecutor(jobs, mp_context=spawn, initializer=_begin) as executor:
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


def _begin() -> None:
    """Exit when the parent is killed, instead of waiting for work forever; a KeyboardInterrupt is never a Ctrl-C here."""
    expect_no_interrupt()
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_wait_and_exit, args=(parent.sentinel,), daemon=True).start()


def _wait_and_exit(sentinel: int) -> None:
    from multiprocessing.connection import wait

    wait([sentinel])
    os._exit(1)
