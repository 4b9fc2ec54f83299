"""Measure the cost of a shard beyond its bytes: checks, digests, checksums and fsync, against a raw write of the same bytes.

    python benchmarks/trace_writing.py --steps 1000000 --folder /tmp --shards 4 --threads 1 2 3

Best and median of several; both sides of each ratio take turns in one run. `given`: the digests come with the columns, as
from a device that computed them; `computed`: they are computed here. `one append`: a batch that fills a shard; `shards`:
several shards, one after the other, by several threads; each against as many raw writes.
"""

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from synthetic_trace import NUM_CONSTANTS, NUM_PREDICATES, make_steps

from kgverify.program.limits import Limits
from kgverify.program.program import Symbols
from kgverify.trace.files.manifest import Part
from kgverify.trace.maintain.join import unite
from kgverify.trace.model.columns import KNOWLEDGE_GRAPH, Columns, select_candidates
from kgverify.trace.model.digests import compute_sequence
from kgverify.trace.model.header import EngineInfo, Header, PolicyInfo
from kgverify.trace.model.schema import SEQUENCE
from kgverify.trace.write.writer import Storage, TraceWriter

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


def measure(sides: dict[str, Callable[[Path], None]], folder: Path, repeats: int) -> dict[str, list[float]]:
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


def report(times: dict[str, list[float]], num_steps: int) -> None:
    raw = next(iter(times.values()))
    print("| what | best, M steps/s | median | best of the raw write | median |\n|---|---|---|---|---|")
    for title, seconds in times.items():
        rates = num_steps / min(seconds) / 1e6, num_steps / np.median(seconds) / 1e6
        ratios = min(raw) / min(seconds), np.median(np.divide(raw, seconds))
        print(f"| {title} | {rates[0]:.2f} | {rates[1]:.2f} | {ratios[0]:.2f} | {ratios[1]:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=65_536, help="steps in one append")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--shards", type=int, default=4, help="shards of this size, written by several threads")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--folder", default=None)
    options = parser.parse_args()
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
        times = measure(
            {
                "raw write, fsync": lambda path: write_raw(path, columns, whole),
                "shard, one append, digests given": lambda path: write_ahead(path, one, 0, "steps"),
                "shard, digests given": lambda path: write_shards(path, given),
                "shard, digests computed": lambda path: write_shards(path, computed),
            },
            folder,
            options.repeats,
        )
        report(times, options.steps)
        parts = one * options.shards
        sides: dict[str, Callable[[Path], None]] = {"raw writes, fsync": lambda path: write_all_raw(path, parts)}
        for level in ("steps", "compact"):
            for num in options.threads:
                title = f"{options.shards} shards, {level}, {num} threads"
                sides[title] = partial(write_ahead, parts=parts, num_threads=num, level=level)
        report(measure(sides, folder, options.repeats), options.steps * options.shards)
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


if __name__ == "__main__":
    main()
