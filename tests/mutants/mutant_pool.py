"""Forked processes: each has a temporary folder of its own, and answers through a pipe."""

import contextlib
import os
import shutil
import signal
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any, Final, NamedTuple

LONGEST: Final = 600.0
"""Seconds of wall-clock time after which a process is ended."""


class Task(NamedTuple):
    """The work of a forked process: a function of a temporary folder and a pipe; and a function of its end."""

    work: Callable[[str, "Connection[Any, Any]"], None]
    end: Callable[[Any, int | None, float], None]


class _Running(NamedTuple):
    task: Task
    process: ForkProcess
    answer: "Connection[Any, Any]"
    folder: str
    begun: float


def run_tasks(tasks: Iterable[Task], num_jobs: int, deadline: float = float("inf")) -> None:
    """Run each task in a process of its own, `num_jobs` at a time; begin none after the deadline (`time.monotonic`)."""
    waiting = iter(tasks)
    running: list[_Running] = []
    has_more = True
    while has_more or running:
        while has_more and len(running) < num_jobs:
            task = next(waiting, None) if time.monotonic() < deadline else None
            if task is None:
                has_more = False
            else:
                running.append(_start(task))
        wait([each for one in running for each in (one.process.sentinel, one.answer)], timeout=1.0)
        for each in [each for each in running if _has_ended(each)]:
            running.remove(each)
            _end(each)


def _start(task: Task) -> _Running:
    context = get_context("fork")
    receive, send = context.Pipe(duplex=False)
    folder = tempfile.mkdtemp(prefix="mutant-")
    process = context.Process(target=task.work, args=(folder, send))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork where a library keeps threads
        process.start()
    send.close()
    return _Running(task, process, receive, folder, time.monotonic())


def _has_ended(running: _Running) -> bool:
    if time.monotonic() - running.begun > LONGEST:
        _kill(running)
    # A process waits until its answer is read if it fills the pipe.
    return running.answer.poll() or not running.process.is_alive()


def _end(ended: _Running) -> None:
    answer = None
    if ended.answer.poll():
        with contextlib.suppress(EOFError):
            answer = ended.answer.recv()
    seconds = time.monotonic() - ended.begun
    ended.process.join(timeout=10.0)
    _kill(ended)
    ended.answer.close()
    shutil.rmtree(ended.folder, ignore_errors=True)
    ended.task.end(answer, ended.process.exitcode, seconds)


def _kill(running: _Running) -> None:
    """Kill the process and those that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(running.process.pid or 0, signal.SIGKILL)
    running.process.join()
