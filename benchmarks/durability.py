"""Kills and full disks: nothing committed may be lost."""

import errno
import itertools
import multiprocessing
import os
import random
import re
import select
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks.shared import make_parser, print_header, print_row
from benchmarks.traces import make_steps
from kgverify.errors import UserError
from kgverify.program.limits import Limits
from kgverify.program.program import Symbols
from kgverify.runs.engine_makers import EngineSpec, Sides
from kgverify.testing.campaigns.campaign import BLOCK_SIZE, Campaign, run_campaign, try_block
from kgverify.testing.campaigns.result import Block, Identity, Tally
from kgverify.trace.files.manifest import partial_of
from kgverify.trace.maintain.check import check_trace
from kgverify.trace.maintain.repair import repair_trace
from kgverify.trace.model.columns import Columns, select_candidates
from kgverify.trace.model.digests import compute_sequence
from kgverify.trace.model.header import EngineInfo, Header, PolicyInfo
from kgverify.trace.read.trace_file import read_trace
from kgverify.trace.write.writer import Storage, TraceWriter

HEADER = Header(EngineInfo("synthetic"), Limits(), PolicyInfo("none"), "")
SYMBOLS = Symbols(tuple(f"p{i}" for i in range(12)), tuple(f"c{i}" for i in range(3000)))

# What a writer calls to change the disk: each call may be the last.
CALLS = ("pwritev", "fsync", "ftruncate", "rename", "replace", "unlink", "mkdir", "rmdir")

NEED_ROOM = ("pwritev", "mkdir", "rename", "replace")


@dataclass(frozen=True)
class Work:
    """A recording: its columns, the candidates of a batch, the steps of a shard."""

    columns: Columns
    batch: int
    shard_steps: int
    commit_seconds: float = 0.0
    num_threads: int = 0
    """Several append, where it is not 0."""

    @property
    def num_candidates(self) -> int:
        """The number of candidates."""
        return len(self.columns.candidates.query)

    def prefix(self, num: int) -> Columns:
        """The first candidates."""
        return select_candidates(self.columns, np.arange(num))

    def record(self, path: Path, confirm: Callable[[int], Any] = lambda num: None) -> None:
        """Record, or go on; tell after each append how many candidates it has confirmed."""
        with TraceWriter(
            path,
            HEADER,
            SYMBOLS,
            storage=Storage(shard_steps=self.shard_steps, commit_seconds=self.commit_seconds),
            resume=True,
        ) as writer:
            begins = range(writer.num_appended, self.num_candidates, self.batch)
            if self.num_threads:
                for _ in writer.append_parts([partial(self.read, begin) for begin in begins], self.num_threads):
                    confirm(writer.num_committed)
                return
            for begin in begins:
                writer.append(*self.read(begin))
                confirm(writer.num_committed)

    def read(self, begin: int) -> tuple[Columns, NDArray[np.uint64] | None]:
        """A batch; with its digests, where several threads append."""
        rows = np.arange(begin, min(begin + self.batch, self.num_candidates))
        columns = select_candidates(self.columns, rows)
        return columns, compute_sequence(columns) if self.num_threads else None


@dataclass
class Findings:
    """The findings of a campaign."""

    num_trials: int = 0
    num_lost: int = 0
    num_wrong: int = 0
    num_unreported: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    messages: list[str] = field(default_factory=list)

    def blame(self, what: str, message: str) -> None:
        """Count what should not be."""
        setattr(self, what, getattr(self, what) + 1)
        self.messages.append(message)


@contextmanager
def failing(number: int, mode: str) -> Iterator[Callable[[], int]]:
    """Let the so-manieth call that touches the disk fail; tells how many there were.

    mode: `before` or `after` it the process is killed; `torn`: after half of what it writes; `full`: half is written,
    and no later call finds any room
    """
    numbers, count = itertools.count(1), 0
    originals = {name: getattr(os, name) for name in CALLS}

    def wrap(name: str) -> Callable[..., Any]:
        original = originals[name]

        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            # Threads call at the same time; each call has a number of its own.
            own = next(numbers)
            count = max(count, own)
            is_full = mode == "full" and (own == number or (own > number and name in NEED_ROOM))
            if is_full and name not in ("ftruncate", "unlink", "rmdir"):
                if name == "pwritev" and own == number:
                    return write_half(original, *arguments)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if mode == "torn" and own == number and name == "pwritev":
                write_half(original, *arguments)
            if mode in ("before", "torn") and own == number:
                os.kill(os.getpid(), signal.SIGKILL)
            is_last = mode == "after" and own == number
            try:
                return original(*arguments, **options)
            finally:
                if is_last:
                    os.kill(os.getpid(), signal.SIGKILL)

        return call

    for name in CALLS:
        setattr(os, name, wrap(name))
    try:
        yield lambda: count
    finally:
        for name, original in originals.items():
            setattr(os, name, original)


def write_half(original: Callable[..., int], descriptor: int, buffers: list[Any], offset: int) -> int:
    content = b"".join(buffers)
    if len(content) < 2:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return original(descriptor, [content[: len(content) // 2]], offset)


def run_child(body: Callable[[Callable[[int], Any]], None], seconds: float | None = None) -> tuple[int, int, str]:
    """Run in a forked process, killed after some seconds; the signal that ended it or 0, what it confirmed, its error."""
    with tempfile.TemporaryFile() as errors:
        ended, confirmed = fork(body, errors, seconds)
        errors.seek(0)
        return ended, confirmed, errors.read().decode()


def fork(body: Callable[[Callable[[int], Any]], None], errors: Any, seconds: float | None) -> tuple[int, int]:
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(read_end)
            body(lambda num: os.write(write_end, struct.pack("<q", num)))
        except UserError as error:
            errors.write(str(error).encode())
        except BaseException as error:
            errors.write(f"not a UserError: {error!r}".encode())
        errors.flush()
        os._exit(0)
    os.close(write_end)
    confirmed = 0
    deadline = None if seconds is None else time.monotonic() + seconds
    while True:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not select.select([read_end], [], [], left)[0]:
            # Nobody has waited for it yet, so the number is still its own.
            os.kill(child, signal.SIGKILL)
            deadline = None
        elif told := os.read(read_end, 8):
            (confirmed,) = struct.unpack("<q", told)
        else:
            break
    os.close(read_end)
    _, status = os.waitpid(child, 0)
    return (os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0), confirmed


def is_same(found: Columns, expected: Columns) -> bool:
    return all(
        a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        for levels in zip(found, expected, strict=True)
        for a, b in zip(*levels, strict=True)
    )


def judge(work: Work, path: Path, confirmed: int, findings: Findings, where: str) -> None:
    """Look at what a writer left, repair a copy, and resume it."""
    partial = partial_of(path)
    if path.exists() and not is_same(read_trace(path).columns, work.columns):
        findings.blame("num_wrong", f"{where}: what stands at the path is not the trace")
    elif not path.exists():
        try:
            columns = read_trace(partial).columns
        except UserError as error:
            findings.kinds["nothing to read"] += 1
            if confirmed:
                findings.blame("num_lost", f"{where}: {confirmed} candidates were confirmed: {error}")
        else:
            num = len(columns.candidates.query)
            findings.kinds["a prefix"] += 1
            if num < confirmed:
                findings.blame("num_lost", f"{where}: {num} candidates read, {confirmed} were confirmed")
            if not is_same(columns, work.prefix(num)):
                findings.blame("num_wrong", f"{where}: what was read is no prefix")
            judge_repair(work, partial, num, findings, where)
    else:
        findings.kinds["the whole trace"] += 1
    try:
        work.record(path)
        columns = read_trace(path).columns
    except UserError as error:
        findings.blame("num_lost", f"{where}: it cannot be resumed: {error}")
    else:
        if not is_same(columns, work.columns):
            findings.blame("num_wrong", f"{where}: resumed, it is another trace")
        if partial.exists():
            findings.blame("num_wrong", f"{where}: {partial.name} is left behind")


def judge_repair(work: Work, partial: Path, num: int, findings: Findings, where: str) -> None:
    copy = partial.with_name("copy.partial")
    shutil.copytree(partial, copy)
    try:
        report = check_trace(copy)
        if report.state != "unfinished":
            findings.blame("num_unreported", f"{where}: check finds it {report.state}: {report}")
        repaired = repair_trace(copy)
        kept = read_trace(copy).columns if num else None
        if repaired.losses or repaired.num_candidates != num or (kept and not is_same(kept, work.prefix(num))):
            findings.blame("num_lost", f"{where}: repaired, {repaired}")
    except UserError as error:
        if num:
            findings.blame("num_lost", f"{where}: repair gave up: {error}")
    shutil.rmtree(copy, ignore_errors=True)


def kill_everywhere(work: Work, folder: Path, findings: Findings, *, stride: int = 1) -> int:
    """Kill at every call, before, after and in the middle of it; how many calls there are."""
    with failing(0, "count") as count:
        work.record(folder / "whole.h5")
        num_calls = count()
    for mode in ("before", "torn", "after"):
        for number in range(1, num_calls + 1, stride):
            path = fresh(folder)

            def body(confirm: Callable[[int], Any], path: Path = path, number: int = number, mode: str = mode) -> None:
                with failing(number, mode):
                    work.record(path, confirm)

            ended, confirmed, error = run_child(body)
            where = f"{mode} call {number}"
            findings.num_trials += 1
            if ended != signal.SIGKILL or error:
                findings.blame("num_unreported", f"{where}: ended by {ended}: {error}")
            judge(work, path, confirmed, findings, where)
    return num_calls


def fill_everywhere(work: Work, folder: Path, findings: Findings, numbers: range) -> None:
    """Let the disk be full from a call on."""
    for number in numbers:
        path = fresh(folder)

        def body(confirm: Callable[[int], Any], path: Path = path, number: int = number) -> None:
            with failing(number, "full"):
                work.record(path, confirm)

        _, confirmed, error = run_child(body)
        judge_full(work, path, confirmed, error, findings, f"full from call {number} on")


def judge_full(work: Work, path: Path, confirmed: int, error: str, findings: Findings, where: str) -> None:
    findings.num_trials += 1
    is_done = path.exists() and not partial_of(path).exists() and not error
    is_reported = "cannot be written: No space left on device" in error and "fix: make room" in error
    if not is_reported and not is_done:
        findings.blame("num_unreported", f"{where}: {error or 'no error'}")
    if is_reported and not path.exists():
        told = re.search(r"the first ([\d,]+) candidates are safe", error)
        num_told = int(told[1].replace(",", "")) if told else 0
        # What no call has forced to disk is not called safe, where that can no longer be done.
        if num_told < confirmed:
            findings.blame("num_unreported", f"{where}: {confirmed} were confirmed, but: {error}")
        confirmed = max(confirmed, num_told)
    judge(work, path, confirmed, findings, where)


def kill_at_random(work: Work, folder: Path, findings: Findings, num: int, seed: int) -> None:
    """Kill from outside, at moments spread over the time that a recording takes."""
    choose = random.Random(seed)
    path = fresh(folder)
    began = time.monotonic()
    work.record(path)
    duration = time.monotonic() - began
    for trial in range(num):
        path = fresh(folder)
        moment = choose.uniform(0, duration * 1.05)

        _, confirmed, error = run_child(lambda confirm, path=path: work.record(path, confirm), moment)
        findings.num_trials += 1
        if error:
            findings.blame("num_unreported", f"random moment {trial}: {error}")
        judge(work, path, confirmed, findings, f"random moment {trial}")


def fill_tmpfs(work: Work, mount: Path, num_bytes: int, findings: Findings, num: int, seed: int) -> None:
    """Record on a file system whose free room ends at random moments; room is made before going on."""
    choose = random.Random(seed)
    ballast = mount / "ballast"
    for trial in range(num):
        path = fresh(mount)
        free = shutil.disk_usage(mount).free
        ballast.write_bytes(bytes(max(0, free - choose.randrange(0, num_bytes))))
        _, confirmed, error = run_child(lambda confirm, path=path: work.record(path, confirm))
        ballast.unlink()
        judge_full(work, path, confirmed, error, findings, f"filled disk {trial}")


@contextmanager
def mounted(num_bytes: int) -> Iterator[Path | None]:
    """A tmpfs of this size; None where it may not be mounted."""
    with tempfile.TemporaryDirectory() as name:
        command = ["mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "tmpfs", name]
        is_mounted = os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0
        try:
            yield Path(name) if is_mounted else None
        finally:
            if is_mounted:
                subprocess.run(["umount", "-l", name], check=True)


def fresh(folder: Path) -> Path:
    """A path with nothing there."""
    path = folder / "run.h5"
    for each in folder.iterdir():
        if each.is_dir():
            shutil.rmtree(each)
        else:
            each.unlink()
    return path


def show(title: str, findings: Findings) -> None:
    kinds = ", ".join(f"{num} {kind}" for kind, num in sorted(findings.kinds.items()))
    print_row(title, findings.num_trials, findings.num_lost, findings.num_wrong, findings.num_unreported, kinds)


def run_durability(words: list[str]) -> int:
    """Kill a writer at every call that touches the disk, at random moments, and fill its disk; then look at what is there.

        python -m benchmarks durability --random 200 --filled 50

    After each: what stands at the path is whole or nothing; what `<path>.partial` reads as is a prefix of what was
    recorded, and no shorter than what was committed; check finds no damage; repair loses nothing; resuming ends in the
    very trace that was to be written. The disk is filled on a tmpfs of a few MiB where mounting is permitted, and in
    any case by wrapped calls that write a part and then raise ENOSPC, as all after them do.
    """
    parser = make_parser(run_durability)
    parser.add_argument("--random", type=int, default=200)
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only each N-th call that touches the disk")
    parser.add_argument("--filled", type=int, default=50)
    parser.add_argument("--large", type=int, default=200_000, help="steps of the larger run")
    parser.add_argument("--folder", help="where to write; in memory it takes a third of the time")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(words)
    print_header("what", "trials", "lost what was committed", "wrong reads", "not reported", "what was left")
    small = make_steps(60, options.seed, steps_per_candidate=5)
    blamed: list[str] = []
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        for title, work in (
            ("shards", Work(small, 2, 20)),
            ("one file", Work(small, 2, 1000, commit_seconds=1e9)),
            ("shards, no pieces", Work(small, 2, 20, commit_seconds=1e9)),
            ("three threads, each batch a shard", Work(small, 2, 1, num_threads=3)),
            ("three threads, shards of a committed batch and another", Work(small, 2, 10, num_threads=3)),
        ):
            findings = Findings()
            num_calls = kill_everywhere(work, folder, findings, stride=options.every)
            show(f"kill -9 before, in and after each of {num_calls} calls ({title})", findings)
            blamed += findings.messages
            findings = Findings()
            fill_everywhere(work, folder, findings, range(1, num_calls + 1, options.every))
            show(f"disk full from each of {num_calls} calls on ({title})", findings)
            blamed += findings.messages
        columns = make_steps(options.large, options.seed)
        for title, large in (
            ("", Work(columns, 200, options.large // 5, commit_seconds=0.05)),
            (", three threads", Work(columns, options.large // 100, 1, num_threads=3)),
        ):
            findings = Findings()
            kill_at_random(large, folder, findings, options.random, options.seed)
            show(f"kill -9 at a random moment of {options.large:,} steps{title}", findings)
            blamed += findings.messages
    num_bytes = 24 << 20
    with mounted(4 * num_bytes) as mount:
        columns = make_steps(20_000, options.seed)
        for title, work in (("", Work(columns, 100, 5_000)), (", three threads", Work(columns, 100, 1, num_threads=3))):
            findings = Findings()
            if mount is not None:
                fill_tmpfs(work, mount, num_bytes, findings, options.filled, options.seed)
            what = f"a tmpfs that is full at a random moment{title}" if mount else "no tmpfs may be mounted"
            show(what, findings)
            blamed += findings.messages
    print(*blamed[:20], sep="\n")
    return int(bool(blamed))


# Campaigns


WINDOW = 30.0
"""Seconds of samples of which the median is taken."""


def read_blocks(corpus: Path) -> list[Block]:
    lines = [line for path in corpus.glob("*.jsonl") for line in path.read_bytes().splitlines(keepends=True)[1:]]
    return [msgspec.json.decode(line, type=Block) for line in lines if line.endswith(b"\n")]


def read_memory(process: str | int) -> int:
    """Return the resident bytes of a process; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:")), 0)


class Killer:
    """A watch that kills one process after the other, and samples the memory of all."""

    def __init__(self, corpus: Path, jobs: int, every: float) -> None:
        self.corpus, self.jobs, self.every = corpus, jobs, every
        self.started = self.killed_at = time.monotonic()
        self.num_killed = 0
        self.in_work: set[int] = set()
        self.samples: list[tuple[float, int, int]] = []

    def __call__(self, tally: Tally) -> None:
        """Sample, and kill a process when it is time."""
        now = time.monotonic()
        processes = multiprocessing.active_children()
        largest = max((read_memory(each.pid or 0) for each in processes), default=0)
        self.samples.append((now - self.started, read_memory("self"), largest))
        if tally.phase != "try" or now - self.killed_at < self.every or not processes:
            return
        done = {block.number for block in read_blocks(self.corpus)}
        unfinished = [number for number in range(len(done) + self.jobs) if number not in done]
        self.in_work.update(unfinished[: self.jobs])
        processes[self.num_killed % len(processes)].kill()
        self.killed_at, self.num_killed = now, self.num_killed + 1

    def describe_memory(self, settled: float) -> Iterable[str]:
        """Yield the memory of this process and of the largest other one, when it had settled and at the end."""
        end = self.samples[-1][0]
        for title, index in (("this process", 1), ("largest worker", 2)):
            first, last = (
                median([each[index] for each in self.samples if begin <= each[0] <= begin + WINDOW])
                for begin in (min(settled, end - WINDOW), end - WINDOW)
            )
            growth = f"{last / max(1, first) - 1:+.1%}"
            yield f"{title}: {first / 1e6:.1f} MB after {settled:.0f} s, {last / 1e6:.1f} MB at the end, {growth}"


def run_killed_workers(words: list[str]) -> int:
    """Measure a campaign whose processes are killed: problems lost, wrong results, and growth of memory.

        python -m benchmarks killed-workers --seconds 1800 --every 60 --jobs 2
        python -m benchmarks killed-workers --seconds 480 --every 20 --settled 180 --mode fused --device cuda

    Blocks that were in work when a process was killed are tried again here, undisturbed, and must have the same result. The exit code is 1 for any
    loss or difference, and if no process was killed.
    """
    parser = make_parser(run_killed_workers)
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--every", type=float, default=60.0)
    parser.add_argument("--settled", type=float, default=300.0, help="seconds after which memory must not grow")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--check", type=int, default=10, help="blocks to try again undisturbed, at most")
    parser.add_argument("--mode", default="eager")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args(words)
    sides = Sides(EngineSpec(mode=options.mode, device=options.device))
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder)
        killer = Killer(corpus, options.jobs, options.every)
        campaign = Campaign(engine=sides.engine, corpus=corpus, seconds=options.seconds, jobs=options.jobs)
        result = run_campaign(campaign, watch=killer)
        blocks = read_blocks(corpus)
    numbers = sorted(block.number for block in blocks)
    num_lost = sum(block.num_left + BLOCK_SIZE - block.num_problems for block in blocks)
    num_lost += BLOCK_SIZE * len(set(range(max(numbers) + 1)) - set(numbers))
    print(f"{result.num_problems:,} problems in {result.seconds:.0f} s, {killer.num_killed} processes killed")
    print(f"problems lost: {num_lost:,}; blocks counted twice: {len(numbers) - len(set(numbers))}")
    print(f"divergences reported: {len(result.divergences)}")
    chosen = [block for block in blocks if block.number in killer.in_work][: options.check]
    work = Identity(
        engine=sides.engine, reference=sides.reference, lockstep=False, seed=campaign.seed, block_size=BLOCK_SIZE
    )
    wrong = [block.number for block in chosen if try_block(work, block.number, block.num_problems) != block]
    print(
        f"wrong results: {len(wrong)} of {len(chosen)} blocks that were in work when a process was killed {wrong or ''}"
    )
    for line in killer.describe_memory(options.settled):
        print(line)
    is_right = not (num_lost or wrong or result.divergences) and len(numbers) == len(set(numbers))
    return int(not (is_right and killer.num_killed))
