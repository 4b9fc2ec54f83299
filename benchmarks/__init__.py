"""Measurements of what the pages claim: `python -m benchmarks` lists them. Here: parsers, times, tables, and their record."""

import argparse
import inspect
import json
import math
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from kgverify.runs.pool import Processes

ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = ROOT / "benchmarks" / "results.json"
OUTPUTS: Final = (RESULTS, RESULTS.with_name("TABLES.md"))
"""The results that the repository holds, and the page of their tables."""
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


TABLES: Final[list[dict[str, Any]]] = []
"""The tables of this process: `columns`, and `rows` of cells, all of them text. A column names its unit."""


def print_header(*titles: str) -> None:
    """Begin a table: print its head in Markdown, and keep it for the file of results."""
    TABLES.append({"columns": list(titles), "rows": []})
    print(f"{chr(10) * (len(TABLES) > 1)}| {' | '.join(titles)} |\n{'|---' * len(titles)}|", flush=True)


def print_row(*cells: object) -> None:
    """Print and keep a row of the last table at once, so that an interrupted benchmark has shown what it measured."""
    row = list(map(str, cells))
    TABLES[-1]["rows"].append(row)
    print(f"| {' | '.join(row)} |", flush=True)


class Figure(NamedTuple):
    """A measured share, `num` of `of`, and its target."""

    name: str
    num: int
    of: int
    target: float

    @property
    def is_met(self) -> bool:
        """True if something was measured and the share reaches the target."""
        return self.of > 0 and self.num >= self.target * self.of

    @property
    def text(self) -> str:
        """The share as text, `7,099 of 7,101 (99.97 %)`; rounded down, so that 100 means all."""
        return f"{self.num:,} of {self.of:,} ({int(self.num / max(1, self.of) * 10000) / 100:g} %)"


def print_figures(figures: Iterable[Figure]) -> int:
    """Print a table of figures, and return the exit code: 1 if one misses its target."""
    print_header("figure", "measured", "target")
    listed = list(figures)
    for figure in listed:
        print_row(figure.name, figure.text, f"{figure.target:.0%}{'' if figure.is_met else ' MISSED'}")
    return int(not all(figure.is_met for figure in listed))


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


class Ended(NamedTuple):
    """The end of a forked process.

    code:      its exit code, or minus the signal that ended it
    seconds:   the time that it computed; infinite if it was killed after its time
    num_bytes: the peak of its memory
    text:      the first megabyte that it printed
    """

    code: int
    seconds: float
    num_bytes: int
    text: str


def run_forked(work: Callable[[], object], *, seconds: float = math.inf, folder: Path | None = None) -> Ended:
    """Run a function in a forked process without input. Kill the process, and those that it started, after some seconds."""
    with tempfile.TemporaryFile() as output:
        began = time.monotonic()
        child = os.fork()
        if not child:
            code = 70
            try:
                os.setpgid(0, 0)
                os.chdir(folder or ".")
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                work()
                code = 0
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
            except BaseException as error:
                os.write(2, f"Traceback {error!r}\n".encode())
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        # Parent and child both do it, so that neither a kill nor a grandchild comes before it.
        with suppress(ProcessLookupError, PermissionError):
            os.setpgid(child, child)
        done = status = 0
        is_killed = False
        while not done:
            done, status, usage = os.wait4(child, 0 if is_killed else os.WNOHANG)
            if not done and time.monotonic() - began > seconds:
                is_killed = True
                _kill(child)
            elif not done:
                time.sleep(0.002)
        _kill(child)
        output.seek(0)
        text = output.read(1 << 20).decode("utf-8", "replace")
        computed = math.inf if is_killed else usage.ru_utime + usage.ru_stime
        return Ended(os.waitstatus_to_exitcode(status), computed, usage.ru_maxrss * 1024, text)


def _kill(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


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


# Results


def describe_machine() -> dict[str, str | int | float]:
    """Return the machine, the versions and the revision that figures belong to."""
    import torch

    git = ["git", "-C", str(ROOT)]
    revision, changed = (
        subprocess.run([*git, *words], capture_output=True, text=True, check=False).stdout.strip()
        for words in (
            ("rev-parse", "--short=12", "HEAD"),
            (
                "status",
                "--porcelain",
                "--untracked-files=no",
                "--",
                ".",
                *(f":!{path.relative_to(ROOT)}" for path in OUTPUTS),
            ),
        )
    )
    gpus = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}" if torch.cuda.is_available() else "no GPU"
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 1),
        "gpu": gpus,
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
        "revision": revision + " with changes" * bool(changed),
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def read_results(path: Path = RESULTS) -> dict[str, Any]:
    """Return the entry of each benchmark in a file of results, by its command; none if the file does not exist."""
    if not path.exists():
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    if (content.get("format"), content.get("version")) != ("kgverify-benchmarks", 1):
        sys.exit(f"{path}: expected results of benchmarks in version 1\nfix: choose another file")
    entries: dict[str, Any] = content["entries"]
    return entries


def save_results(path: Path, command: str, **fields: Any) -> None:
    """Write the tables that were printed, with some fields, as the entry of a command; other entries stay."""
    entries = read_results(path) | {command: {**fields, "tables": TABLES}}
    content = {"format": "kgverify-benchmarks", "version": 1, "entries": dict(sorted(entries.items()))}
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def render_tables(entries: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    """Return the page of the tables of all entries, in the order of the titles of benchmarks."""
    parts = [
        "# Measured figures\n\n`python -m benchmarks tables` writes this page from `benchmarks/results.json`."
        " `python -m benchmarks NAME --output benchmarks/results.json` measures your machine."
        " *Load* is the number of running processes before a benchmark began: above the number of cores, others took part"
        " of the time.\n"
    ]
    for command, entry in sorted(entries.items(), key=lambda each: list(titles).index(each[0].split()[0])):
        name, machine = command.split()[0], entry["machine"]
        where = (
            f"{entry['date']}, revision {machine['revision']}, {machine['processor']}, {machine['cores']} cores,"
            f" {machine['gpu']}, {machine['threads']} thread{'s' * (machine['threads'] != 1)}, load {machine['load']},"
            f" Python {machine['python']}, torch {machine['torch']}; {entry['seconds']:,.0f} s in total."
        )
        title = titles[name]
        parts.append(f"## {name}\n\n{title[0].upper()}{title[1:]}.\n\n`python -m benchmarks {command}`: {where}\n")
        for table in entry["tables"]:
            rows = [table["columns"], ["---"] * len(table["columns"]), *table["rows"]]
            parts.append("".join(f"| {' | '.join(row)} |\n" for row in rows))
    return "\n".join(parts)
