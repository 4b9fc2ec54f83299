"""Writing and comparing traces, and synthetic traces for both."""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from statistics import median
from typing import Final

import h5py
import numpy as np
from numpy.typing import NDArray

from benchmarks.shared import make_parser, print_header, print_row
from kgverify.comparison.compare import compare
from kgverify.program.limits import Limits
from kgverify.program.program import Symbols
from kgverify.report.steps import LazyTraceView
from kgverify.trace.files.manifest import Part
from kgverify.trace.maintain.join import unite
from kgverify.trace.model.columns import (
    KNOWLEDGE_GRAPH,
    Candidates,
    Columns,
    Rankings,
    Resolvents,
    Steps,
    select_candidates,
)
from kgverify.trace.model.digests import compute_sequence
from kgverify.trace.model.header import EngineInfo, Header, PolicyInfo
from kgverify.trace.model.schema import SEQUENCE
from kgverify.trace.read.trace_file import TraceFile
from kgverify.trace.write.writer import NO_CLAUSES, Clauses, Storage, TraceWriter

# Synthetic traces


NUM_PREDICATES, NUM_CONSTANTS = 12, 3000


def make_steps(num_steps: int, seed: int = 0, *, steps_per_candidate: int = 10) -> Columns:
    """Make steps, in candidates of a given number of steps each; variables numbered by first appearance, as a prover does."""
    random = np.random.default_rng(seed)
    num_candidates = num_steps // steps_per_candidate
    num_steps = num_candidates * steps_per_candidate
    num_resolvents = np.minimum(random.lognormal(1.35, 1.25, num_steps), 120).astype(np.uint32)
    r = int(num_resolvents.sum())
    goal_sizes = random.choice(np.arange(1, 7, dtype=np.uint16), num_steps, p=[0.2, 0.25, 0.25, 0.15, 0.1, 0.05])
    kind = (random.random(r) < 0.25).astype(np.uint8)
    sizes = np.where(kind == 0, random.choice(np.arange(1, 7), r, p=[0.2, 0.3, 0.2, 0.15, 0.1, 0.05]), 0)

    def atoms(counts: NDArray[np.integer]) -> NDArray[np.int32]:
        rows = np.empty((int(counts.sum()), 3), np.int32)
        rows[:, 0] = random.integers(0, NUM_PREDICATES, len(rows))
        rows[:, 1:] = random.integers(0, NUM_CONSTANTS, (len(rows), 2))
        # A chain of variables, one more with each atom.
        position = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        is_open = random.random(len(counts)) < 0.7
        is_variable = np.repeat(is_open, counts)
        last = position == np.repeat(counts, counts) - 1
        rows[is_variable & (position > 0), 1] = -position[is_variable & (position > 0)]
        rows[is_variable & ~last, 2] = -1 - position[is_variable & ~last]
        return rows

    return Columns(
        Candidates(
            np.arange(num_candidates, dtype=np.int32),
            np.zeros(num_candidates, np.int8),
            random.integers(0, NUM_PREDICATES, (num_candidates, 3)).astype(np.int32),
            np.full(num_candidates, steps_per_candidate, np.uint32),
            np.ones(num_candidates, np.int8),
            np.zeros(num_candidates, np.uint8),
            random.random(num_candidates),
        ),
        Steps(
            np.tile(np.arange(steps_per_candidate, dtype=np.uint16), num_candidates),
            goal_sizes,
            num_resolvents,
            np.zeros(num_steps, np.uint32),
            np.zeros(num_steps, np.uint32),
            random.integers(0, 3, num_steps).astype(np.int32),
            np.zeros(num_steps, np.int8),
            atoms(goal_sizes),
        ),
        Resolvents(
            kind,
            sizes.astype(np.uint16),
            np.ones(r, np.uint8),
            np.zeros(r, np.int32),
            random.random(r).astype(np.float32),
            atoms(sizes),
        ),
    )


NUM_LARGE_PREDICATES: Final = 20
NUM_LARGE_CONSTANTS: Final = 2_000
LARGE_SYMBOLS: Final = Symbols(
    tuple(f"p{i}" for i in range(NUM_LARGE_PREDICATES)), tuple(f"entity {i}" for i in range(NUM_LARGE_CONSTANTS))
)
LARGE_HEADER: Final = Header(EngineInfo("synthetic", precision="float32"), Limits(), PolicyInfo("none"), "")

DEFAULTS: Final = Storage()


def make_columns(seed: int, num_steps: int) -> Columns:
    """Make candidates with this number of steps in total; the same seed gives the same candidates."""
    random = np.random.default_rng(seed)

    def atoms(num: int) -> NDArray[np.int32]:
        found = random.integers(-4, NUM_LARGE_CONSTANTS, (num, 3), np.int32)
        found[:, 0] = random.integers(0, NUM_LARGE_PREDICATES, num, np.int32)
        return found

    lengths = random.integers(1, 20, num_steps // 5 + 1).astype(np.uint32)
    ends = np.cumsum(lengths)
    num = int(np.searchsorted(ends, num_steps)) + 1
    lengths = lengths[:num]
    lengths[-1] -= int(ends[num - 1]) - num_steps
    num_resolvents = np.clip(np.exp(random.normal(1.42, 1.21, num_steps)), 1, 120).astype(np.uint32)
    total = int(num_resolvents.sum())
    goal_sizes, sizes = (np.clip(1 + random.poisson(1.87, n), 1, 6).astype(np.uint16) for n in (num_steps, total))
    return Columns(
        Candidates(
            random.integers(0, 10_000, num, np.int32),
            random.integers(0, 2, num, np.int8),
            atoms(num),
            lengths,
            random.integers(1, 4, num, np.int8),
            np.zeros(num, np.uint8),
            random.normal(size=num),
        ),
        Steps(
            random.integers(0, 20, num_steps, np.uint16),
            goal_sizes,
            num_resolvents,
            np.zeros(num_steps, np.uint32),
            np.zeros(num_steps, np.uint32),
            (random.random(num_steps) * num_resolvents).astype(np.int32),
            np.zeros(num_steps, np.int8),
            atoms(int(goal_sizes.sum())),
        ),
        Resolvents(
            np.zeros(total, np.uint8),
            sizes,
            random.integers(1, 3, total, np.uint8),
            random.integers(0, 1_000, total, np.int32),
            random.normal(size=total).astype(np.float32),
            atoms(int(sizes.sum())),
        ),
    )


def write_synthetic(path: Path, num_steps: int, *, shard_steps: int = 1_000_000, seed: int = 0) -> None:
    """Write a trace of this number of steps: shards of `shard_steps`, or one file if one shard is enough."""
    with TraceWriter(path, LARGE_HEADER, LARGE_SYMBOLS, storage=Storage(shard_steps=shard_steps)) as writer:
        for begin in range(0, num_steps, 250_000):
            writer.append(make_columns(seed + begin, min(250_000, num_steps - begin)))
            if num_steps > shard_steps and (begin + 250_000) % shard_steps == 0:
                writer.commit()


def write_trace(
    path: Path,
    header: Header,
    symbols: Symbols,
    columns: Columns,
    rankings: Rankings | None = None,
    *,
    clauses: Clauses = NO_CLAUSES,
    storage: Storage = DEFAULTS,
) -> None:
    """Write a whole trace as one file, at once."""
    whole = replace(storage, shard_steps=1 << 62, shard_bytes=1 << 62, commit_seconds=inf)
    with TraceWriter(path, header, symbols, clauses=clauses, storage=whole) as writer:
        writer.append(columns)
        if rankings is not None:
            writer.set_rankings(rankings)


# Writing


HEADER = Header(EngineInfo("synthetic"), Limits(), PolicyInfo("none"), "")
SYMBOLS = Symbols(tuple(f"p{i}" for i in range(NUM_PREDICATES)), tuple(f"c{i}" for i in range(NUM_CONSTANTS)))


Words = NDArray[np.uint64]


def write_raw(path: Path, columns: Columns, sequence: Words) -> None:
    arrays = KNOWLEDGE_GRAPH.encode(columns) | {SEQUENCE: sequence}
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for array in arrays.values():
        view = memoryview(array.reshape(-1).view(np.uint8))
        while view:
            view = view[os.write(descriptor, view) :]
    os.fsync(descriptor)
    os.close(descriptor)


def write_shards(path: Path, batches: list[tuple[Columns, Words | None]]) -> None:
    with TraceWriter(
        path,
        HEADER,
        SYMBOLS,
        storage=Storage(shard_steps=1 << 40, commit_seconds=1e9),
        part=Part(0, 1),
    ) as writer:
        for columns, sequence in batches:
            writer.append(columns, sequence)


def write_ahead(path: Path, parts: list[tuple[Columns, Words]], num_threads: int, level: str) -> None:
    with TraceWriter(
        path,
        HEADER,
        SYMBOLS,
        storage=Storage(level, shard_steps=1),
        part=Part(0, 1),
    ) as writer:
        if num_threads:
            for _ in writer.append_parts([partial(tuple, part) for part in parts], num_threads):
                pass
        for columns, sequence in parts if not num_threads else []:
            writer.append(columns, sequence)


def write_all_raw(path: Path, parts: list[tuple[Columns, Words]]) -> None:
    path.mkdir()
    for number, (columns, sequence) in enumerate(parts):
        write_raw(path / str(number), columns, sequence)


def measure_sides(sides: dict[str, Callable[[Path], None]], folder: Path, repeats: int) -> dict[str, list[float]]:
    """The times of each side, in turns; each ratio is of times of one turn."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, run in sides.items():
            path = folder / "run"
            began = time.perf_counter()
            run(path)
            times[name].append(time.perf_counter() - began)
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
    return times


def report_sides(times: dict[str, list[float]], num_steps: int) -> None:
    raw = next(iter(times.values()))
    print_header("what", "best, M steps/s", "median", "best of the raw write", "median")
    for title, seconds in times.items():
        rates = num_steps / min(seconds) / 1e6, num_steps / np.median(seconds) / 1e6
        ratios = min(raw) / min(seconds), np.median(np.divide(raw, seconds))
        print_row(title, *(f"{each:.2f}" for each in (*rates, *ratios)))


def run_writing(words: list[str]) -> None:
    """Measure the cost of a shard (checks, digests, checksums, fsync) against a raw write of the same bytes.

        python -m benchmarks writing --steps 1000000 --folder /tmp --shards 4 --threads 1 2 3

    Best and median of several; both sides of each ratio take turns in one run. `given`: the digests come with the
    columns, as from a device that computed them; `computed`: they are computed here. `one append`: a batch that fills a
    shard; `shards`: several shards, one after the other, by several threads; each against as many raw writes.
    """
    parser = make_parser(run_writing)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=65_536, help="steps in one append")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--shards", type=int, default=4, help="shards of this size, written by several threads")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--folder", default=None)
    options = parser.parse_args(words)
    columns = make_steps(options.steps)
    num_candidates = len(columns.candidates.query)
    size = max(1, options.batch // 10)
    batches = [
        select_candidates(columns, np.arange(i, min(i + size, num_candidates))) for i in range(0, num_candidates, size)
    ]
    given = [(batch, compute_sequence(batch)) for batch in batches]
    computed = [(batch, None) for batch in batches]
    whole = np.concatenate([sequence for _, sequence in given])
    arrays = KNOWLEDGE_GRAPH.encode(columns) | {SEQUENCE: whole}
    print(f"{options.steps:,} steps, {sum(a.nbytes for a in arrays.values()) / options.steps:.0f} bytes a step")
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        one = [(columns, whole)]
        times = measure_sides(
            {
                "raw write, fsync": lambda path: write_raw(path, columns, whole),
                "shard, one append, digests given": lambda path: write_ahead(path, one, 0, "steps"),
                "shard, digests given": lambda path: write_shards(path, given),
                "shard, digests computed": lambda path: write_shards(path, computed),
            },
            folder,
            options.repeats,
        )
        report_sides(times, options.steps)
        parts = one * options.shards
        sides: dict[str, Callable[[Path], None]] = {"raw writes, fsync": lambda path: write_all_raw(path, parts)}
        for level in ("steps", "compact"):
            for num in options.threads:
                title = f"{options.shards} shards, {level}, {num} threads"
                sides[title] = partial(write_ahead, parts=parts, num_threads=num, level=level)
        report_sides(measure_sides(sides, folder, options.repeats), options.steps * options.shards)
        roots = set()
        for count in (1, 2, 4):
            paths = []
            for index in range(count):
                paths.append(folder / f"part-{index}")
                with TraceWriter(
                    paths[-1], HEADER, SYMBOLS, storage=Storage(shard_steps=options.steps // 8), part=Part(index, count)
                ) as writer:
                    for batch, sequence in given[index::count]:
                        writer.append(batch, sequence)
            roots.add(unite(paths, folder / "joined").root)
            for path in (*paths, folder / "joined"):
                shutil.rmtree(path)
        print(f"roots of 1, 2 and 4 writers: {', '.join(sorted(roots))}")


# Comparison


REPEATS = 4


def time_best(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the time of the fastest repetition, in seconds."""
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def compare_arrays(expected: TraceFile, actual: TraceFile) -> None:
    """`numpy.array_equal` of every column, memory-mapped: the least that a comparison can read."""
    for left, right in zip(expected.files, actual.files, strict=True):
        for name, stored in left.stored.items():
            if stored.offset < 0:
                continue
            pair = [
                np.memmap(file.path, stored.dtype, "r", file.stored[name].offset, stored.shape)
                for file in (left, right)
            ]
            assert np.array_equal(pair[0], pair[1])


def compare_with_h5diff(pairs: list[tuple[Path, Path]]) -> None:
    for pair in pairs:
        subprocess.run(["h5diff", *map(str, pair)], check=True)


def copy_in_chunks(source: Path, path: Path) -> None:
    """The same datasets in chunks of 8,192 rows."""
    if path.exists():
        return
    with h5py.File(source) as old, h5py.File(path, "w") as new:

        def copy(name: str, node: h5py.Dataset | h5py.Group) -> None:
            if isinstance(node, h5py.Dataset):
                rows = (min(8192, node.shape[0]), *node.shape[1:])
                new.create_dataset(name, data=node[()], chunks=rows if node.shape[0] else None)

        old.visititems(copy)


def in_new_process(what: str, *arguments: str) -> dict[str, float]:
    path, other = arguments
    words = [sys.executable, "-m", "benchmarks", "comparison", path, "--part", what, other]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def peak_mb() -> float:
    """Return the resident memory of this process, pages of mapped files included."""
    # Not what getrusage says, which starts from the process that this one was made by.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def time_show(path: str, candidate: str) -> dict[str, float]:
    from kgverify.cli.commands.show import open_view

    begin = time.perf_counter()
    view = open_view(Path(path))
    assert isinstance(view, LazyTraceView)
    view.step(int(candidate), 0)
    return {"seconds": time.perf_counter() - begin, "peak": peak_mb()}


def time_whole(expected: str, actual: str) -> dict[str, float]:
    begin = time.perf_counter()
    found = compare(expected, actual, verifies_content=False)
    assert found.verdict == "AGREE"
    return {"seconds": time.perf_counter() - begin, "peak": peak_mb()}


def run_comparison(words: list[str]) -> None:
    """Measure the cost of comparing recorded traces, both sides of each ratio in one run.

        python -m benchmarks comparison FOLDER --millions 10

    FOLDER receives two synthetic traces of MILLIONS million steps (10; some 4.6 GB each), kept for the next run.
    `h5diff` is one of HDF5's own tools (Debian: hdf5-tools); without it its rows say so.
    """
    parser = make_parser(run_comparison)
    parser.add_argument("folder")
    parser.add_argument("--millions", type=int, default=10, help="millions of steps")
    parser.add_argument("--part", nargs=2, metavar=("WHAT", "OTHER"), help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.part:
        print(json.dumps(PARTS[options.part[0]](options.folder, options.part[1])))
        return
    folder, millions = Path(options.folder), options.millions
    folder.mkdir(exist_ok=True)
    expected, actual, one = folder / f"e{millions}", folder / f"a{millions}", folder / "e1.h5"
    if not expected.exists():
        write_synthetic(expected, millions * 1_000_000)
    if not actual.exists():
        (shutil.copytree if expected.is_dir() else shutil.copy)(expected, actual)
    if not one.exists():
        write_synthetic(one, 1_000_000)
    traces = TraceFile(expected), TraceFile(actual)
    pairs = [(a.path, b.path) for a, b in zip(traces[0].files, traces[1].files, strict=True)]
    num_bytes = sum(a.stat().st_size for a, _ in pairs)
    print(f"{millions} M steps, {num_bytes / millions / 1e6:.0f} bytes a step, {len(pairs)} files\n")
    print_header("figure", "found", "beside it", "ratio")

    whole, beside = [], []
    for _ in range(REPEATS):
        whole.append(in_new_process("whole", str(expected), str(actual)))
        beside.append(time_best(lambda: compare_arrays(*traces), 1))
    seconds, peak = min(each["seconds"] for each in whole), max(each["peak"] for each in whole)
    row = "full comparison, checksums verified", f"{millions / seconds:.1f} M steps/s, peak {peak:.0f} MB"
    print_row(*row, f"array_equal: {millions / min(beside):.1f} M steps/s", f"{min(beside) / seconds:.2f}")
    if shutil.which("h5diff"):
        again = min(in_new_process("whole", str(expected), str(actual))["seconds"] for _ in range(2))
        few = pairs[: max(1, len(pairs) // 5)]
        rate = len(few) / len(pairs) * millions / time_best(lambda: compare_with_h5diff(few), 2)
        ratio = f"{millions / min(seconds, again) / rate:.1f}"
        print_row(*row, f"h5diff, {len(few)} of the files: {rate:.2f} M steps/s", ratio)
        chunked = [folder / "chunked-e.h5", folder / "chunked-a.h5"]
        copy_in_chunks(one, chunked[0])
        shutil.copy(chunked[0], chunked[1])
        rate = 1 / time_best(lambda: compare_with_h5diff([(chunked[0], chunked[1])]), 2)
        ratio = f"{millions / min(seconds, again) / rate:.0f}"
        print_row(*row, f"h5diff, chunked, 1 M steps: {rate:.2f} M steps/s", ratio)
    else:
        print_row("", "", "h5diff is not installed", "")

    shows = []
    for seed in range(9):
        candidate = str(random.Random(seed).randrange(traces[0].num_candidates))
        shows.append(min(in_new_process("show", str(expected), candidate)["seconds"] * 1e3 for _ in range(3)))
    text = f"{min(shows):.1f} / {median(shows):.1f} / {max(shows):.1f} ms (least, median, most of 9)"
    print_row(f"a random step of {millions} M shown", text, "", "")


PARTS: dict[str, Callable[..., dict[str, float]]] = {
    "show": time_show,
    "whole": time_whole,
}
