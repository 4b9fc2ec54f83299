"""Drawn graphs and the cost of reading them; the cost of recording and comparing traces."""

import os
import random
import sys
import tempfile
import time
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

import kgverify as kv
from benchmarks import ROOT, make_parser, print_header, print_row, run_apart, time_in_turn

sys.path.extend(str(ROOT / "tests" / folder) for folder in ("", "trace"))

from kgverify.trace.read.trace_file import TraceFile

# Synthetic graphs


EXPONENT: Final = 0.75
"""The exponent of the entities' power law: the weight of the k-th is `k ** -EXPONENT`."""
FACTS_PER_ENTITY: Final = 8
NUM_TEST: Final = 1_000
_SHARE_WITH_CONSTANT: Final = 0.15
_LINES: Final = 1 << 18


class Triples(NamedTuple):
    """Triples in ids. head, relation, tail: int64 [n]."""

    head: NDArray[np.int64]
    relation: NDArray[np.int64]
    tail: NDArray[np.int64]


def draw_triples(num: int, num_entities: int, num_relations: int, random: np.random.Generator) -> Triples:
    """Draw different triples. Each relation has hubs of its own."""
    # Some are drawn twice.
    drawn = int(num * 1.3) + 100
    relation = (num_relations ** random.random(drawn)).astype(np.int64) - 1
    offsets = random.integers(0, num_entities, (2, num_relations))
    head, tail = (
        ((num_entities * random.random(drawn) ** (1 / (1 - EXPONENT))).astype(np.int64) + offsets[side, relation])
        % num_entities
        for side in (0, 1)
    )
    _, first = np.unique((relation * num_entities + head) * num_entities + tail, return_index=True)
    chosen = random.permutation(first)[:num]
    return Triples(head[chosen], relation[chosen], tail[chosen])


def draw_rules(triples: Triples, num: int, num_relations: int, random: np.random.Generator) -> list[str]:
    """Draw rules in AnyBURL's format: paths of one to three atoms, some of them with constants."""
    head, relation, tail = triples
    by_head = np.argsort(head, kind="stable")
    heads = head[by_head]

    def walk(entity: int, length: int) -> list[int]:
        """Return the triples of a walk from an entity."""
        low, high = np.searchsorted(heads, (entity, entity + 1))
        if not length or low == high:
            return []
        each = int(by_head[random.integers(low, high)])
        return [each, *walk(int(tail[each]), length - 1)]

    rules: dict[str, None] = {}
    while len(rules) < num:
        start = int(random.integers(len(head)))
        found = walk(int(head[start]), int(random.choice((1, 2, 3), p=(0.3, 0.6, 0.1))))
        names = ["X", *"ABC"[: len(found) - 1], "Y"]
        body = [f"r{relation[each]}({names[i]},{names[i + 1]})" for i, each in enumerate(found)]
        concluded = int(num_relations ** random.random()) - 1
        if random.random() < _SHARE_WITH_CONSTANT:
            body = [f"r{relation[found[0]]}(X,e{tail[found[0]]})"]
            clause = f"r{concluded}(X,e{tail[start]}) <= {body[0]}"
        else:
            clause = f"r{concluded}(X,Y) <= {', '.join(body)}"
        support = int(random.integers(5, 5_000))
        rules.setdefault(f"{int(support / 0.6)}\t{support}\t{random.uniform(0.1, 0.99):.4f}\t{clause}")
    return list(islice(rules, num))


def write_graph(folder: Path, num_facts: int, num_rules: int, num_relations: int, seed: int) -> None:
    """Write train.txt, test.txt and rules.txt."""
    random = np.random.default_rng(seed)
    num_entities = max(8, num_facts // FACTS_PER_ENTITY)
    triples = draw_triples(num_facts + NUM_TEST, num_entities, num_relations, random)
    folder.mkdir(parents=True, exist_ok=True)
    train = Triples(*(column[NUM_TEST:] for column in triples))
    for name, part in (("train", train), ("test", Triples(*(column[:NUM_TEST] for column in triples)))):
        with (folder / f"{name}.txt").open("w") as file:
            for begin in range(0, len(part.head), _LINES):
                rows = zip(*(column[begin : begin + _LINES].tolist() for column in part), strict=True)
                file.write("".join([f"e{head}\tr{relation}\te{tail}\n" for head, relation, tail in rows]))
    (folder / "rules.txt").write_text("\n".join(draw_rules(train, num_rules, num_relations, random)) + "\n")


def write_chain(folder: Path, length: int) -> None:
    """Write a chain, with queries for its start: a derivation takes as many steps as it may."""
    folder.mkdir()
    (folder / "train.txt").write_text("".join(f"e{i}\tnext\te{i + 1}\n" for i in range(length)))
    (folder / "test.txt").write_text("".join(f"e{i}\treach\te0\n" for i in range(1, 101)))
    (folder / "rules.txt").write_text("reach(X,Y) :- next(X,Z), reach(Z,Y).\n")


def measure_reading(folder: Path, cache: Path) -> tuple[float, float]:
    """Return the CPU seconds that reading a graph takes, and the peak of memory in MB."""
    os.environ["KGVERIFY_CACHE"] = str(cache)
    began = time.process_time()
    graph = kv.load_graph(folder)
    len(graph.train), graph.program
    return time.process_time() - began, peak_mb()


def peak_mb() -> float:
    """Return the peak of the resident memory of this process in MB, pages of mapped files included."""
    # getrusage starts from the memory of the parent.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def run_large_graph(words: list[str]) -> None:
    """Write a graph whose entities follow a power law and whose relations follow Zipf's law, and measure `kgverify.load_graph`.

        python -m benchmarks large-graph --facts 5000000 --rules 2000

    The body of each rule is a walk through the graph, so that its instances exist. Support and confidence are drawn.
    """
    parser = make_parser(run_large_graph)
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="keep the graph here")
    parser.add_argument("--facts", type=int, default=5_000_000)
    parser.add_argument("--rules", type=int, default=2_000)
    parser.add_argument("--relations", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as name:
        folder: Path = options.save or Path(name, "graph")
        write_graph(folder, options.facts, options.rules, options.relations, options.seed)
        print_header("facts", "rules", "read from", "CPU time, s (least to most)", "peak memory, MB")
        caches = [Path(name, f"cache {i}") for i in range(options.repeats)]
        for source in ("files", "cache"):
            seconds, peaks = zip(*(run_apart(measure_reading, folder, cache) for cache in caches), strict=True)
            cells = f"{min(seconds):.2f} to {max(seconds):.2f}", f"{max(peaks):.0f}"
            print_row(f"{options.facts:,}", f"{options.rules:,}", source, *cells)


# Comparison


def compare_arrays(expected: TraceFile, actual: TraceFile) -> None:
    """`numpy.array_equal` of every column, memory-mapped: the least that a comparison can read."""
    for left, right in zip(expected.files, actual.files, strict=True):
        for name, stored in left.stored.items():
            if stored.offset >= 0:
                pair = [
                    np.memmap(f.path, stored.dtype, "r", f.stored[name].offset, stored.shape) for f in (left, right)
                ]
                np.array_equal(*pair)


def record_trace(graph: str, queries: int, corruptions: int, path: Path) -> float:
    """Record the evaluator on the CPU, and return the seconds that it takes."""
    began = time.perf_counter()
    kv.record(graph, path, kv.Evaluator(device="cpu"), queries=queries, corruptions=corruptions)
    return time.perf_counter() - began


def time_comparison(expected: Path, actual: Path) -> tuple[float, float]:
    """Return the seconds of a comparison, and the peak of memory in MB."""
    began = time.perf_counter()
    report = kv.compare(expected, actual)
    seconds = time.perf_counter() - began
    assert report.verdict == "AGREE", report
    return seconds, peak_mb()


def time_show(path: Path, candidate: int) -> float:
    """Return the seconds that it takes to open a trace and look up a step; modules are imported before."""
    kv.open_trace(path).step(0, 0)
    began = time.perf_counter()
    kv.open_trace(path).step(candidate, 0)
    return time.perf_counter() - began


def run_comparison(words: list[str]) -> None:
    """Measure `kgverify.record`, `kgverify.compare` of two equal recordings, and a look-up by `kgverify.open_trace`.

        python -m benchmarks comparison --graph family --queries 1000

    `numpy.array_equal` of the same columns takes turns with the comparison. Recordings and comparisons are calls in processes
    of their own: their times include imports. Files are in the cache of the operating system.
    """
    parser = make_parser(run_comparison)
    parser.add_argument("--folder", help="where to write the traces; the folder of temporary files if not given")
    parser.add_argument("--graph", default="family")
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--corruptions", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=4)
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        paths = Path(name, "expected"), Path(name, "actual")
        work = options.graph, options.queries, options.corruptions
        recorded = min(run_apart(record_trace, *work, path) for path in paths)
        traces = TraceFile(paths[0]), TraceFile(paths[1])
        whole, beside = [], []
        for _ in range(options.repeats):
            whole.append(run_apart(time_comparison, *paths))
            beside += time_in_turn({"": partial(compare_arrays, *traces)}, 1)[""]
        candidates = [random.Random(seed).randrange(traces[0].num_candidates) for seed in range(9)]
        shown = median([run_apart(time_show, paths[0], each) for each in candidates])
        print_header("what", "steps", "MB", "s", "M steps/s", "peak memory, MB")
        num_steps, num_bytes = traces[0].num_steps, sum(file.path.stat().st_size for file in traces[0].files)
        compared, peak = min(found for found, _ in whole), f"{max(found for _, found in whole):.0f}"
        for what, seconds, memory in (
            ("`kgverify.record`", recorded, ""),
            ("`kgverify.compare`", compared, peak),
            ("`numpy.array_equal` of all columns", min(beside), ""),
        ):
            rate = f"{num_steps / seconds / 1e6:.3g}"
            print_row(what, f"{num_steps:,}", f"{num_bytes / 1e6:,.1f}", f"{seconds:.3g}", rate, memory)
        print_row("`kgverify.open_trace(...).step`, median of 9", "1", "", f"{shown:.3g}", "", "")
