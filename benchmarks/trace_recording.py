"""Measure the cost of recording for the compiled evaluator: a trace of each level on disk, against the same run without one.

    python benchmarks/trace_recording.py --graph family --queries 1000 --device cuda --folder /tmp --threads 1 2 3

`off` is `evaluate`; `on` is what `kgverify record` does with the same candidates, drawn and ranked already: commits, checksums,
digests and fsync. Both take turns in one run; the least of several. Every trace has the same root, and the digests of its
first candidates are those of the reference. `threads`: parts that are appended at the same time.
"""

import argparse
import itertools
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from kgverify.engines.policy import make_two_tower
from kgverify.graphs.load import load_graph
from kgverify.program.limits import Limits
from kgverify.prover.engine import CompiledEngine
from kgverify.runs.engine_makers import evaluator_pipeline
from kgverify.runs.run import Pipeline, Run, describe_work, load_policy, reference_pipeline
from kgverify.trace.model.columns import CandidateSet, Rankings
from kgverify.trace.model.digests import compute_sequence
from kgverify.trace.model.schema import TraceLevel
from kgverify.trace.read.trace_file import TraceFile
from kgverify.verification.record import SHARD_STEPS, RecordingOptions, record

OFF = "off | "

NO_RANKINGS = Rankings(
    np.zeros(0, np.int32),
    np.zeros(0, np.int8),
    np.zeros(0, np.uint32),
    np.zeros(0, np.float64),
    np.zeros(0, np.float64),
)


def drawn_before(engine: CompiledEngine, candidates: CandidateSet) -> Pipeline:
    """A pipeline that neither draws nor ranks."""

    def draw(*_: Any) -> CandidateSet:
        return candidates

    def rank(*_: Any) -> Rankings:
        return NO_RANKINGS

    return Pipeline(engine, draw, rank)


def size_of(path: Path) -> int:
    return sum(each.stat().st_size for each in (path.rglob("*") if path.is_dir() else (path,)))


def measure(run: Run, precision: str, options: argparse.Namespace) -> None:
    pipeline = evaluator_pipeline(
        run,
        device=options.device,
        mode=options.mode,
        slots=options.slots,
        work=describe_work(run, records=True),
        precision=precision,
    )
    engine = pipeline.engine
    assert isinstance(engine, CompiledEngine)
    candidates = pipeline.draw_for(run)
    ready = drawn_before(engine, candidates)
    few = candidates.take(slice(0, options.checked))
    expected = compute_sequence(reference_pipeline(run).engine.prove(few))
    best: dict[str, float] = {}
    notes: dict[str, str] = {}
    roots = set()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        path = Path(name) / "trace.h5"
        # The first turn captures, and takes the memory.
        for turn in range(options.repeats + 1):
            began = time.perf_counter()
            engine.evaluate(candidates)
            seconds = {OFF: time.perf_counter() - began}
            for level, threads in itertools.product(options.levels, options.threads):
                side = f"{level.value} | {threads}"
                began = time.perf_counter()
                recording = record(
                    run,
                    ready,
                    path,
                    RecordingOptions(level=level, shard_steps=options.shard_steps),
                    append_threads=threads,
                )
                seconds[side] = time.perf_counter() - began
                if turn == 0:
                    trace = TraceFile(path)
                    roots.add(trace.compute_root())
                    stored = np.concatenate([each["sequence"] for each in trace.read_digests(0, len(few.query))])
                    is_right = np.array_equal(stored, expected)
                    size = size_of(path)
                    notes[side] = f"{size / recording.num_steps:.1f} bytes a step, {size / 2**20:,.0f} MiB"
                    notes[side] += "" if is_right else "; WRONG"
                    notes[OFF] = f"{recording.num_steps:,} steps"
                    del trace
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            if turn:
                best = {each: min(best.get(each, np.inf), value) for each, value in seconds.items()}
    for each, value in best.items():
        more = "" if each == OFF else f"{value / best[OFF] - 1:+.1%}"
        rate = int(notes[OFF].split()[0].replace(",", "")) / value / 1e6
        print(f"| {precision} | {each} | {value * 1e3:,.0f} ms | {rate:.2f} | {more} | {notes[each]} |", flush=True)
    if len(roots) != 1:
        print(f"ROOTS DIFFER: {roots}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--graph", default="countries")
    parser.add_argument("--policy", default="two_tower")
    parser.add_argument("--large", action="store_true", help="two_tower of 8 blocks of 256")
    parser.add_argument("--queries", type=int, default=20)
    parser.add_argument("--corruptions", type=int, default=100)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--mode", default="auto")
    parser.add_argument("--slots", type=int, default=None)
    parser.add_argument("--precision", nargs="+", default=["float32"])
    parser.add_argument("--folder", default=None)
    parser.add_argument("--threads", type=int, nargs="+", default=[1], help="that append; each in turn")
    parser.add_argument(
        "--levels", type=TraceLevel, nargs="+", default=[TraceLevel.DIGESTS, TraceLevel.COMPACT, TraceLevel.STEPS]
    )
    parser.add_argument("--shard-steps", type=int, default=SHARD_STEPS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--checked", type=int, default=100, help="candidates that the reference proves")
    options = parser.parse_args()
    graph, limits = load_graph(options.graph), Limits()
    policy = (
        make_two_tower(graph.program, limits, embedding=250, hidden=256, blocks=8, seed=0)
        if options.large
        else load_policy(options.policy, graph, limits, 0)
    )
    run = Run(graph, limits, policy, num_queries=options.queries, num_corruptions=options.corruptions)
    print(
        f"{options.graph}, {policy.name}, {options.queries} queries x {options.corruptions} corruptions, {options.device}"
    )
    print("| precision | level | threads | time | M steps/s | more than off | |\n|---|---|---|---|---|---|---|")
    for precision in options.precision:
        measure(run, precision, options)


if __name__ == "__main__":
    main()
