"""Kills, full disks and damage: nothing committed may be lost, and nothing altered may be accepted."""

import errno
import itertools
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks import ROOT, judge_apart, make_parser, print_header, print_row, run_forked

sys.path.extend(str(ROOT / "tests" / folder) for folder in ("", "trace"))
from hostile_traces import copy_as_plain_h5py
from trace_builders import HEADER, PROGRAM, RANKINGS, SYMBOLS, make_columns, open_writer, rows, write_file

from kgverify.comparison.compare import compare
from kgverify.comparison.result import Verdict
from kgverify.errors import UserError
from kgverify.trace.files.manifest import partial_of
from kgverify.trace.maintain.check import check_trace
from kgverify.trace.maintain.repair import repair_trace
from kgverify.trace.model.columns import Columns, select_candidates
from kgverify.trace.model.digests import compute_sequence
from kgverify.trace.model.schema import TraceLevel
from kgverify.trace.model.trace import Trace
from kgverify.trace.read.trace_file import TraceFile, read_trace
from kgverify.trace.write.writer import Storage, TraceWriter


def are_same_arrays(found: Iterable[Any], expected: Iterable[Any]) -> bool:
    """Return whether arrays are equal in type, shape and bytes, or both left out."""
    return all(
        (a is None) == (b is None)
        and (a is None or (a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()))
        for a, b in zip(found, expected, strict=True)
    )


def are_same_columns(found: Columns, expected: Columns) -> bool:
    """Return whether two traces have the same candidates, steps and resolvents."""
    return all(map(are_same_arrays, found, expected))


# Kills and full disks


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
    """The findings of some trials."""

    title: str = ""
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


def run_child(body: Callable[[Callable[[int], Any]], None], seconds: float = math.inf) -> tuple[int, int, str]:
    """Run in a forked process, killed after some seconds; its exit code, the candidates that it confirmed, and its error."""

    def work() -> None:
        try:
            body(lambda num: os.write(1, b"%d\n" % num))
        except UserError as error:
            os.write(2, str(error).encode())

    ended = run_forked(work, seconds=seconds)
    confirmed = re.match(r"(?:\d+\n)*", ended.text)
    assert confirmed is not None
    return ended.code, max(map(int, confirmed[0].split()), default=0), ended.text[confirmed.end() :]


def judge(work: Work, path: Path, confirmed: int, findings: Findings, where: str) -> None:
    """Look at what a writer left, repair a copy, and resume it."""
    partial = partial_of(path)
    if path.exists() and not are_same_columns(read_trace(path).columns, work.columns):
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
            if not are_same_columns(columns, work.prefix(num)):
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
        if not are_same_columns(columns, work.columns):
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
        if repaired.losses or repaired.num_candidates != num or (kept and not are_same_columns(kept, work.prefix(num))):
            findings.blame("num_lost", f"{where}: repaired, {repaired}")
    except UserError as error:
        if num:
            findings.blame("num_lost", f"{where}: repair gave up: {error}")
    shutil.rmtree(copy, ignore_errors=True)


def count_calls(work: Work, path: Path) -> int:
    """Return the number of calls of a recording that touch the disk."""
    with failing(0, "count") as count:
        work.record(path)
        return count()


def fail_everywhere(work: Work, folder: Path, findings: Findings, modes: Iterable[str], numbers: range) -> None:
    """Kill the writer at every call, before, after or in the middle of it; or let the disk be full from the call on."""
    for mode, number in itertools.product(modes, numbers):
        path = fresh(folder)

        def body(confirm: Callable[[int], Any], path: Path = path, number: int = number, mode: str = mode) -> None:
            with failing(number, mode):
                work.record(path, confirm)

        ended, confirmed, error = run_child(body)
        where = f"{mode} call {number}"
        if mode == "full":
            judge_full(work, path, confirmed, error, findings, where)
            continue
        findings.num_trials += 1
        if ended != -signal.SIGKILL or error:
            findings.blame("num_unreported", f"{where}: ended by {ended}: {error}")
        judge(work, path, confirmed, findings, where)


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


@contextmanager
def judging(blamed: list[str]) -> Iterator[Findings]:
    """Collect the findings of trials, and print them as a row."""
    findings = Findings()
    yield findings
    kinds = ", ".join(f"{num} {kind}" for kind, num in sorted(findings.kinds.items()))
    counts = findings.num_trials, findings.num_lost, findings.num_wrong, findings.num_unreported
    print_row(findings.title, *counts, kinds)
    blamed += findings.messages


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
    small = make_columns(options.seed, 30)
    blamed: list[str] = []
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        for title, work in (
            ("shards", Work(small, 5, 20)),
            ("one file", Work(small, 5, 1000, commit_seconds=1e9)),
            ("shards, no pieces", Work(small, 5, 20, commit_seconds=1e9)),
            ("three threads, each batch a shard", Work(small, 5, 1, num_threads=3)),
            ("three threads, shards of a committed batch and another", Work(small, 5, 10, num_threads=3)),
        ):
            num_calls = count_calls(work, fresh(folder))
            numbers = range(1, num_calls + 1, options.every)
            with judging(blamed) as findings:
                findings.title = f"kill -9 before, in and after each of {num_calls} calls ({title})"
                fail_everywhere(work, folder, findings, ("before", "torn", "after"), numbers)
            with judging(blamed) as findings:
                findings.title = f"disk full from each of {num_calls} calls on ({title})"
                fail_everywhere(work, folder, findings, ("full",), numbers)
        columns = make_columns(options.seed, options.large // 2)
        for title, large in (
            ("", Work(columns, 1_000, options.large // 5, commit_seconds=0.05)),
            (", three threads", Work(columns, options.large // 20, 1, num_threads=3)),
        ):
            with judging(blamed) as findings:
                findings.title = f"kill -9 at a random moment of {options.large:,} steps{title}"
                kill_at_random(large, folder, findings, options.random, options.seed)
    num_bytes = 24 << 20
    columns = make_columns(options.seed, 10_000)
    with mounted(4 * num_bytes) as mount:
        for title, work in (("", Work(columns, 500, 5_000)), (", three threads", Work(columns, 500, 1, num_threads=3))):
            with judging(blamed) as findings:
                findings.title = (
                    f"a tmpfs that is full at a random moment{title}" if mount else "no tmpfs may be mounted"
                )
                if mount is not None:
                    fill_tmpfs(work, mount, num_bytes, findings, options.filled, options.seed)
    print(*blamed[:20], sep="\n", file=sys.stderr)
    return int(bool(blamed))


# Damage


SECONDS = 20.0
"""A file that takes longer to read counts as one that hangs."""

BAD = ("wrong read", "wrong AGREE", "crash", "hang", "another error", "other when mapped")


class Job(NamedTuple):
    """A damaged copy to be made and read: of which good trace, in what way, from which seed."""

    source: Path
    way: str
    seed: int


def make_sources(folder: Path) -> list[Path]:
    """Good traces of every level, packed in every way, in both layouts of HDF5; and a folder of shards."""
    sources = []
    for level in TraceLevel:
        for is_archived in (False, True):
            path = folder / f"{level.value}{'-archived' * is_archived}.h5"
            columns = make_columns(1, 12, has_stages=True)
            write_file(path, columns, RANKINGS, **PROGRAM, level=level.value, is_archived=is_archived)
            copy_as_plain_h5py(path, path.with_name(f"{path.stem}-plain.h5"))
            sources += [path, path.with_name(f"{path.stem}-plain.h5")]
    columns = make_columns(2, 12)
    with open_writer(folder / "shards", **PROGRAM, shard_steps=5) as writer:
        for i in range(12):
            writer.append(rows(columns, i, i + 1))
    return [*sources, folder / "shards"]


def flip(content: bytearray, random: np.random.Generator) -> bytearray:
    """One bit."""
    position = int(random.integers(8 * len(content)))
    content[position // 8] ^= 1 << (position % 8)
    return content


def fuzz(content: bytearray, random: np.random.Generator) -> bytearray:
    """A few changes of the kinds that break parsers: numbers at their bounds, runs copied, cut, moved, zeroed."""
    for _ in range(int(random.integers(1, 6))):
        at = int(random.integers(len(content)))
        # Most of what can be broken stands in the metadata, at the beginning and the end.
        if random.random() < 0.5:
            at = min(at, int(random.integers(1, 4096))) if random.random() < 0.5 else len(content) - 1 - at % 4096
        at = max(at, 0) % len(content)
        size = int(2 ** random.integers(0, 9))
        way = int(random.integers(7))
        if way == 0:
            content[at] = int(random.integers(256))
        elif way == 1:
            width = int(random.choice([1, 2, 4, 8]))
            number = int(random.choice([0, 1, 2**7, 2**15, 2**31 - 1, 2**31, 2**62, 2**63 - 1, 2**63, 2**64 - 1]))
            content[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, "little")
        elif way == 2:
            source = int(random.integers(len(content)))
            content[at : at + size] = content[source : source + size]
        elif way == 3:
            del content[at : at + size]
        elif way == 4:
            content[at:at] = random.bytes(size)
        elif way == 5:
            content[at : at + size] = bytes(min(size, len(content) - at))
        else:
            del content[max(at, 8) :]
        if not content:
            return bytearray(b"\0")
    return content


WAYS: dict[str, Callable[[bytearray, np.random.Generator], bytearray]] = {"flip": flip, "fuzz": fuzz}


def is_same(found: Trace, expected: Trace) -> bool:
    """Return whether two traces hold the same, but for what this schema does not know and for what nothing depends on."""
    rest = ("header", "symbols", "rules", "fields", "is_complete")
    return (
        are_same_columns(found.columns, expected.columns)
        and are_same_arrays(found.digests, expected.digests)
        and are_same_arrays((found.facts, found.fact_lines), (expected.facts, expected.fact_lines))
        and (found.rankings is None) == (expected.rankings is None)
        and are_same_arrays(found.rankings or (), expected.rankings or ())
        and all(getattr(found, name) == getattr(expected, name) for name in rest)
    )


def read_mapped(path: Path) -> Trace:
    """The trace as the mapped path has it, every value and digest verified."""
    mapped = TraceFile(path)
    mapped.verify_content()
    columns = mapped.read_candidates(0, mapped.num_candidates)
    parts = [*mapped.read_digests(0, mapped.num_candidates)]
    stored = np.concatenate(parts) if parts else None
    return replace(
        mapped.with_columns(columns, mapped.check_block(columns, stored, str(path))), rankings=mapped.rankings
    )


def judge_copy(path: Path, expected: Trace) -> str:
    """Read one file into memory and mapped, and return the result; both must agree."""
    result, mapped = (read_and_judge(path, expected, read) for read in (read_trace, read_mapped))
    return result if result == mapped else f"other when mapped: {mapped}, in memory {result}"


def read_and_judge(path: Path, expected: Trace, read: Callable[[Path], Trace]) -> str:
    try:
        found = read(path)
    except UserError:
        return "refused"
    except Exception as error:
        return f"another error: {type(error).__name__}: {error}"
    if is_same(found, expected):
        return "read unchanged"
    return "wrong AGREE" if compare(expected, found).verdict is Verdict.AGREE else "wrong read"


def damage(job: Job, folder: Path) -> Path:
    """The damaged copy of a job."""
    random = np.random.default_rng([job.seed, len(job.way)])
    path = folder / job.source.name
    if job.source.is_dir():
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(job.source, path)
        file = sorted(path.iterdir())[int(random.integers(len(list(path.iterdir()))))]
    else:
        path.write_bytes(job.source.read_bytes())
        file = path
    file.write_bytes(WAYS[job.way](bytearray(file.read_bytes()), random))
    return path


def judge_damage(jobs: list[Job], folder: Path) -> Iterator[str]:
    """Yield the result of each job."""
    good: dict[Path, Trace] = {job.source: read_trace(job.source) for job in jobs}
    for result in judge_apart(lambda job: judge_copy(damage(job, folder), good[job.source]), jobs, SECONDS):
        is_end = isinstance(result, int)
        is_hang = result in (-signal.SIGVTALRM, -signal.SIGALRM)
        yield "hang" if is_hang else f"crash: exit code {result}" if is_end else str(result)


def run_damage(words: list[str]) -> int:
    """Damaged traces by the thousand: flipped bits, and fuzzed files. (`hostile-files` has the constructs.)

        python -m benchmarks damage                      # 10,000 bit flips, 20,000 fuzzed files
        python -m benchmarks damage --flips 100 --fuzzed 200

    Each file is read in a child process, so that a crash of the interpreter is counted and not suffered. A file that
    reads must be the very trace it was, since nothing is sealed again; where it is not, a comparison of the two may not
    say AGREE. It is read into memory, and mapped; both must give the same result. Exit code 1 if anything but refusals
    and true readings occurred.
    """
    parser = make_parser(run_damage)
    parser.add_argument("--flips", type=int, default=10_000)
    parser.add_argument("--fuzzed", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="a folder for files that were not judged as they should")
    options = parser.parse_args(words)
    rows = []
    num_bad = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "good").mkdir()
        (folder / "work").mkdir()
        sources = make_sources(folder / "good")
        for way, num in (("flip", options.flips), ("fuzz", options.fuzzed)):
            jobs = [Job(sources[i % len(sources)], way, options.seed + i) for i in range(num)]
            counts: Counter[str] = Counter()
            for job, result in zip(jobs, judge_damage(jobs, folder / "work"), strict=True):
                kind = result.partition(":")[0]
                counts[kind] += 1
                if kind in BAD:
                    print(f"{result}: {job}", file=sys.stderr)
                    if options.keep:
                        options.keep.mkdir(exist_ok=True)
                        target = options.keep / f"{way}-{job.seed}-{job.source.name}"
                        path = damage(job, folder / "work")
                        (shutil.copytree if path.is_dir() else shutil.copy)(path, target)
            rows.append((f"{num:,} files, {'one bit flipped' if way == 'flip' else 'fuzzed'}", counts))
            num_bad += sum(counts[kind] for kind in BAD)
    kinds = ["refused", "read unchanged", *BAD]
    print_header("", *kinds)
    for title, counts in rows:
        print_row(title, *(counts[kind] for kind in kinds))
    return 1 if num_bad else 0
