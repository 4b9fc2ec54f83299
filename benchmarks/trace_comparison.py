"""Measure the cost of comparing recorded traces, both sides of each ratio in one run.

Usage: trace_comparison.py FOLDER [MILLIONS]. FOLDER receives two synthetic traces of MILLIONS million steps (10; some
4.6 GB each), kept for the next run. `h5diff` is one of HDF5's own tools (Debian: hdf5-tools); without it its rows say so.
"""

import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import h5py
import numpy as np
from synthetic_traces import write_synthetic

from kgverify.comparison.compare import compare
from kgverify.report.steps import LazyTraceView
from kgverify.trace.read.trace_file import TraceFile

REPEATS = 4


def best(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """The least seconds of some repeats."""
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
    done = subprocess.run([sys.executable, __file__, what, *arguments], check=True, capture_output=True, text=True)
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


def main() -> None:
    if sys.argv[1] in PARTS:
        print(json.dumps(PARTS[sys.argv[1]](*sys.argv[2:])))
        return
    folder, millions = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 10
    folder.mkdir(exist_ok=True)
    expected, actual, one = folder / f"e{millions}", folder / f"a{millions}", folder / "e1.h5"
    if not expected.exists():
        write_synthetic(expected, millions * 1_000_000)
    if not actual.exists():
        shutil.copytree(expected, actual)
    if not one.exists():
        write_synthetic(one, 1_000_000)
    traces = TraceFile(expected), TraceFile(actual)
    pairs = [(a.path, b.path) for a, b in zip(traces[0].files, traces[1].files, strict=True)]
    num_bytes = sum(a.stat().st_size for a, _ in pairs)
    print(f"{millions} M steps, {num_bytes / millions / 1e6:.0f} bytes a step, {len(pairs)} files\n")
    print("| figure | found | beside it | ratio |\n|---|---|---|---|", flush=True)

    whole, beside = [], []
    for _ in range(REPEATS):
        whole.append(in_new_process("whole", str(expected), str(actual)))
        beside.append(best(lambda: compare_arrays(*traces), 1))
    seconds, peak = min(each["seconds"] for each in whole), max(each["peak"] for each in whole)
    row = f"| full comparison, checksums verified | {millions / seconds:.1f} M steps/s, peak {peak:.0f} MB |"
    print(f"{row} array_equal: {millions / min(beside):.1f} M steps/s | {min(beside) / seconds:.2f} |", flush=True)
    if shutil.which("h5diff"):
        again = min(in_new_process("whole", str(expected), str(actual))["seconds"] for _ in range(2))
        few = pairs[: max(1, len(pairs) // 5)]
        rate = len(few) / len(pairs) * millions / best(lambda: compare_with_h5diff(few), 2)
        print(
            f"{row} h5diff, {len(few)} of the files: {rate:.2f} M steps/s | {millions / min(seconds, again) / rate:.1f} |"
        )
        chunked = [folder / "chunked-e.h5", folder / "chunked-a.h5"]
        copy_in_chunks(one, chunked[0])
        shutil.copy(chunked[0], chunked[1])
        rate = 1 / best(lambda: compare_with_h5diff([(chunked[0], chunked[1])]), 2)
        print(f"{row} h5diff, chunked, 1 M steps: {rate:.2f} M steps/s | {millions / min(seconds, again) / rate:.0f} |")
    else:
        print("| | | h5diff is not installed | |")

    shows = []
    for seed in range(9):
        candidate = str(random.Random(seed).randrange(traces[0].num_candidates))
        shows.append(min(in_new_process("show", str(expected), candidate)["seconds"] * 1e3 for _ in range(3)))
    text = f"{min(shows):.1f} / {median(shows):.1f} / {max(shows):.1f} ms (least, median, most of 9)"
    print(f"| a random step of {millions} M shown | {text} | | |")


PARTS: dict[str, Callable[..., dict[str, float]]] = {
    "show": time_show,
    "whole": time_whole,
}

if __name__ == "__main__":
    main()
