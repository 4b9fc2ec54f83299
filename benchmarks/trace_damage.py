"""Damaged traces by the thousand: flipped bits, fuzzed files, and every construct of the hostile corpus.

    python benchmarks/trace_damage.py                      # 10,000 bit flips, 20,000 fuzzed files, the corpus
    python benchmarks/trace_damage.py --flips 100 --fuzzed 200

Each file is read in a child process, so that a crash of the interpreter is counted and not suffered. A file that reads
must be the very trace it was, since nothing is sealed again; where it is not, a comparison of the two may not say
AGREE. It is read into memory, and mapped; both must give the same result. Prints a Markdown table; exit code 1 if anything
but refusals and true readings occurred.
"""

import argparse
import multiprocessing
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "trace"))

from hostile_traces import CONSTRUCTS, copy_as_plain_h5py, shards
from synthetic_traces import write_trace
from trace_builders import FACT_LINES, FACTS, HEADER, RANKINGS, RULES, SYMBOLS, make_columns

from kgverify.comparison.compare import compare
from kgverify.comparison.result import Verdict
from kgverify.errors import UserError
from kgverify.trace.model.schema import TraceLevel
from kgverify.trace.model.trace import Trace
from kgverify.trace.read.trace_file import TraceFile, read_trace
from kgverify.trace.write.writer import Clauses, Storage

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
    columns = make_columns(1, 12, has_stages=True)
    clauses = Clauses(FACTS, FACT_LINES, RULES)
    sources = []
    for level in TraceLevel:
        for is_archived in (False, True):
            path = folder / f"{level.value}{'-archived' * is_archived}.h5"
            write_trace(
                path,
                HEADER,
                SYMBOLS,
                columns,
                RANKINGS,
                clauses=clauses,
                storage=Storage(level.value, is_archived=is_archived),
            )
            copy_as_plain_h5py(path, path.with_name(f"{path.stem}-plain.h5"))
            sources += [path, path.with_name(f"{path.stem}-plain.h5")]
    shards(folder / "shards")
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
    pairs: list[tuple[Any, Any]] = [
        (a, b)
        for left, right in zip(found.columns, expected.columns, strict=True)
        for a, b in zip(left, right, strict=True)
    ]
    pairs += [*zip(found.digests, expected.digests, strict=True), (found.facts, expected.facts)]
    pairs += [(found.fact_lines, expected.fact_lines)]
    pairs += zip(found.rankings or (), expected.rankings or (), strict=False)
    same = all(
        (a is None) == (b is None)
        and (a is None or (a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()))
        for a, b in pairs
    )
    rest = ("header", "symbols", "rules", "fields", "is_complete")
    return (
        same
        and all(getattr(found, name) == getattr(expected, name) for name in rest)
        and ((found.rankings is None) == (expected.rankings is None))
    )


def read_mapped(path: Path) -> Trace:
    """The trace as the mapped path has it, every value and digest verified."""
    mapped = TraceFile(path)
    mapped.verify_content()
    columns = mapped.read_candidates(0, mapped.num_candidates)
    parts = mapped.read_digests(0, mapped.num_candidates)
    stored = {name: np.concatenate([part[name] for part in parts]) for name in (parts[0] if parts else ())}
    return replace(
        mapped.with_columns(columns, mapped.check_block(columns, stored, str(path))), rankings=mapped.rankings
    )


def judge(path: Path, expected: Trace) -> str:
    """Read one file into memory and mapped, and return the result; both must agree."""
    result, mapped = (_judge(path, expected, read) for read in (read_trace, read_mapped))
    return result if result == mapped else f"other when mapped: {mapped}, in memory {result}"


def _judge(path: Path, expected: Trace, read: Callable[[Path], Trace]) -> str:
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


def work(jobs: list[Job], index: int, folder: Path, connection: Any) -> None:
    """Judge the jobs from `index` on, telling each result at once, so that the one that crashes is known."""
    good: dict[Path, Trace] = {}
    for i in range(index, len(jobs)):
        job = jobs[i]
        if job.source not in good:
            good[job.source] = read_trace(job.source)
        signal.alarm(int(SECONDS))
        result = judge(damage(job, folder), good[job.source])
        signal.alarm(0)
        connection.send((i, result))
    connection.send(None)


def run_jobs(jobs: list[Any], folder: Path, work: Callable[..., None] = work) -> Iterator[tuple[Any, str]]:
    """The result of each job; a child that dies is replaced, and its job counted as a crash or a hang."""
    index = 0
    while index < len(jobs):
        receiver, sender = multiprocessing.Pipe(duplex=False)
        child = multiprocessing.get_context("spawn").Process(target=work, args=(jobs, index, folder, sender))
        child.start()
        sender.close()
        try:
            while (told := receiver.recv()) is not None:
                yield jobs[told[0]], told[1]
                index = told[0] + 1
            child.join()
        except EOFError:
            child.join()
            yield jobs[index], "hang" if child.exitcode == -signal.SIGALRM else f"crash: exit code {child.exitcode}"
            index += 1
        finally:
            child.terminate()
            child.join()


def try_constructs(folder: Path) -> tuple[Counter[str], dict[str, float], float]:
    """Return the result for each hostile construct, and the times of each refusal and of the good file, in ms, best of five."""
    columns = make_columns(1, 8)
    clauses = Clauses(FACTS, FACT_LINES, RULES)
    write_trace(folder / "good.h5", HEADER, SYMBOLS, columns, RANKINGS, clauses=clauses)
    copy_as_plain_h5py(folder / "good.h5", folder / "plain.h5")
    expected = read_trace(folder / "good.h5")
    counts: Counter[str] = Counter()
    taken = {}
    for number, (name, make) in enumerate(CONSTRUCTS.items()):
        place = folder / str(number)
        place.mkdir()
        path = make(folder / "plain.h5", place)
        result = judge(path, expected)
        counts[result] += 1
        if result != "refused":
            print(f"{result}: {name}", file=sys.stderr)
        taken[name] = _milliseconds_to_read(path)
    return counts, taken, _milliseconds_to_read(folder / "plain.h5")


def _milliseconds_to_read(path: Path) -> float:
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        with suppress(UserError):
            read_trace(path)
        best = min(best, time.perf_counter() - begin)
    return best * 1e3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flips", type=int, default=10_000)
    parser.add_argument("--fuzzed", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="a folder for files that were not judged as they should")
    options = parser.parse_args()
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
            for job, result in run_jobs(jobs, folder / "work"):
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
        (folder / "hostile").mkdir()
        counts, taken, good = try_constructs(folder / "hostile")
        rows.append((f"{len(CONSTRUCTS)} hostile constructs", counts))
        num_bad += len(CONSTRUCTS) - counts["refused"]
    kinds = ["refused", "read unchanged", *BAD]
    print(f"| | {' | '.join(kinds)} |\n|---|{'---|' * len(kinds)}")
    for title, counts in rows:
        print(f"| {title} | {' | '.join(str(counts[kind]) for kind in kinds)} |")
    slowest = sorted(taken, key=lambda name: -taken[name])
    middle = taken[slowest[len(slowest) // 2]]
    print(f"\nrefusals: median {middle:.2f} ms; reading the good file takes {good:.2f} ms; the slowest:")
    for name in slowest[:8]:
        print(f"- {taken[name]:.2f} ms: {name}")
    return 1 if num_bad else 0


if __name__ == "__main__":
    sys.exit(main())
