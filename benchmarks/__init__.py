"""Measurements of what the pages claim: `python -m benchmarks` lists them. Here: parsers, times, tables, and their record."""

import argparse
import inspect
import io
import math
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, TextIO, TypeAlias, TypeVar

import msgspec

from kgverify.runs.pool import Processes

ROOT: Final = Path(__file__).parents[1]
MOST_WAITING: Final = 20
"""A process that is still waiting after this many times the seconds that it may compute is ended."""
Job = TypeVar("Job")
Result = TypeVar("Result")
Task: TypeAlias = tuple[str, Callable[..., Any], tuple[Any, ...]]
"""A name that identifies the task, its function, and the arguments."""


def make_parser(benchmark: Callable[..., Any]) -> argparse.ArgumentParser:
    """Return a parser for the options of a benchmark, which its docstring describes."""
    return argparse.ArgumentParser(
        prog=f"python -m benchmarks {benchmark.__name__.removeprefix('run_').replace('_', '-')}",
        description=inspect.getdoc(benchmark),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def print_row(*cells: object) -> None:
    """Print a row of a Markdown table at once, so that what was measured is there even if the rest is not."""
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def print_header(*titles: str) -> None:
    """Print the head of a Markdown table."""
    print_row(*titles)
    print("|" + "---|" * len(titles), flush=True)


def time_in_turn(
    sides: Mapping[str, Callable[[], object]],
    repeats: int,
    *,
    clock: Callable[[], float] = time.perf_counter,
    clean: Callable[[], object] = int,
) -> dict[str, list[float]]:
    """Return the seconds of each side, which run in turn; a ratio is of times of one turn. clean: what follows each run."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, run in sides.items():
            began = clock()
            run()
            seconds[name].append(clock() - began)
            clean()
    return seconds


def run_apart(function: Callable[..., Result], *given: object) -> Result:
    """Return the result of a call in a process of its own, whose memory and caches are fresh."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(function, given)


def judge_apart(judge: Callable[[Job], Result], jobs: Sequence[Job], seconds: float) -> Iterator[Result | int]:
    """Yield the result of each job, which a forked process makes; or its exit code, if it ended or computed for too long."""
    context = get_context("fork")

    def work(begin: int, sender: Connection) -> None:
        for job in jobs[begin:]:
            # The signal of this timer ends compiled loops as well.
            signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
            signal.alarm(math.ceil(MOST_WAITING * seconds))
            result = judge(job)
            signal.alarm(0)
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            sender.send(result)

    number = 0
    while number < len(jobs):
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=work, args=(number, sender), daemon=True)
        child.start()
        sender.close()
        try:
            while number < len(jobs):
                yield receiver.recv()
                number += 1
        except EOFError:
            child.join()
            yield child.exitcode or 0
            number += 1
        finally:
            child.terminate()
            child.join()


def run_tasks(tasks: Iterable[Task], kind: type[Result], jobs: int, log: Path | None = None) -> Iterator[Result]:
    """Run tasks in processes, and yield their results in order. Those in the log are not run again.

    kind: the type of the results
    log:  a file to which each result is added, and from which a later run resumes
    """
    done: dict[str, Result] = {}
    for line in log.read_bytes().splitlines() if log is not None and log.exists() else ():
        # A run that was killed leaves a part of a line.
        with suppress(msgspec.MsgspecError):
            name, result = msgspec.json.decode(line, type=tuple[str, kind])  # type: ignore[valid-type]
            done[name] = result
    listed = list(tasks)
    with Processes(jobs) as pool, (log or Path(os.devnull)).open("wb") as file:
        for entry in done.items():
            file.write(msgspec.json.encode(entry) + b"\n")
        futures = {name: pool.submit(function, *given) for name, function, given in listed if name not in done}
        for number, (name, *_) in enumerate(listed, 1):
            if name in futures:
                done[name] = futures[name].result()
                file.write(msgspec.json.encode((name, done[name])) + b"\n")
                file.flush()
            print(f"\r{number} of {len(listed)} tasks", end="", file=sys.stderr, flush=True)
            yield done[name]
    print(file=sys.stderr)


class Recorder(io.TextIOBase):
    """A stream that passes everything on, and keeps the rows of tables and the other lines."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._line = ""
        self._columns: list[str] | None = None
        self.tables: list[list[dict[str, str]]] = []
        self.lines: list[str] = []

    def write(self, text: str) -> int:
        """Write a text, and keep its whole lines."""
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._keep(line)
        return self._stream.write(text)

    def flush(self) -> None:
        self._stream.flush()

    def _keep(self, line: str) -> None:
        if not line.startswith("|"):
            self._columns = None
            self.lines += [line] if line.strip() else []
            return
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if self._columns is None:
            self._columns = cells
            self.tables.append([])
        elif set(line) > set("|-") or "-" not in line:
            # Two columns may have one title.
            self.tables[-1].append(
                {
                    title if title and title not in self._columns[:i] else f"{title} {i}".strip(): cell
                    for i, (title, cell) in enumerate(zip(self._columns, cells, strict=False))
                }
            )


def describe_machine() -> dict[str, str | int]:
    """Return the machine, the versions and the revision that figures belong to."""
    found: dict[str, str | int] = {"processor": _processor(), "cores": len(os.sched_getaffinity(0))}
    found |= {"python": platform.python_version(), "system": platform.platform()}
    for package in ("torch", "triton", "numpy", "h5py"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    import torch

    if torch.cuda.is_available():
        found["gpu"] = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    for name, words in (("revision", ("rev-parse", "HEAD")), ("changed", ("status", "--porcelain"))):
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        found[name] = done.stdout.strip() if name == "revision" else len(done.stdout.splitlines())
    return found


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())
