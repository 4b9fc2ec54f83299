"""Synthetic traces and graphs, and the cost of writing and comparing traces."""

import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks import make_parser, print_header, print_row, run_apart, time_in_turn
from kgverify.comparison.compare import compare
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.graphs.rules import parse_rules
from kgverify.program.atom_table import AtomTable
from kgverify.program.limits import Limits
from kgverify.program.program import Symbols
from kgverify.trace.files.manifest import Part
from kgverify.trace.model.columns import KNOWLEDGE_GRAPH, Candidates, Columns, Resolvents, Steps, select_candidates
from kgverify.trace.model.digests import compute_sequence
from kgverify.trace.model.header import EngineInfo, Header, PolicyInfo
from kgverify.trace.model.schema import SEQUENCE
from kgverify.trace.read.trace_file import TraceFile
from kgverify.trace.write.writer import Storage, TraceWriter

# Synthetic traces


NUM_PREDICATES: Final = 20
NUM_CONSTANTS: Final = 2_000
SYMBOLS: Final = Symbols(
    tuple(f"p{i}" for i in range(NUM_PREDICATES)), tuple(f"entity {i}" for i in range(NUM_CONSTANTS))
)
HEADER: Final = Header(EngineInfo("synthetic", precision="float32"), Limits(), PolicyInfo("none"), "")


def make_columns(seed: int, num_steps: int, steps_per_candidate: int | None = None) -> Columns:
    """Make candidates with this number of steps in total, each with 1 to 19 steps, or with a fixed number.

    The same seed gives the same candidates.
    """
    random = np.random.default_rng(seed)

    def atoms(num: int) -> NDArray[np.int32]:
        found = random.integers(-4, NUM_CONSTANTS, (num, 3), np.int32)
        found[:, 0] = random.integers(0, NUM_PREDICATES, num, np.int32)
        return found

    if steps_per_candidate is None:
        lengths = random.integers(1, 20, num_steps // 5 + 1).astype(np.uint32)
    else:
        lengths = np.full(num_steps // steps_per_candidate + 1, steps_per_candidate, np.uint32)
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
    with TraceWriter(path, HEADER, SYMBOLS, storage=Storage(shard_steps=shard_steps)) as writer:
        for begin in range(0, num_steps, 250_000):
            writer.append(make_columns(seed + begin, min(250_000, num_steps - begin)))
            if num_steps > shard_steps and (begin + 250_000) % shard_steps == 0:
                writer.commit()


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


def draw_graph(num_facts: int, num_rules: int, num_copies: int = 1, num_relations: int = 40) -> KnowledgeGraph:
    """Draw a power-law graph with rules, and repeat its facts with other entities."""
    random = np.random.default_rng(0)
    num_entities = max(8, num_facts // FACTS_PER_ENTITY)
    num_test = max(2, num_facts // 100)
    drawn = draw_triples(num_facts + num_test, num_entities, num_relations, random)
    triples = np.stack([drawn.relation, drawn.head, drawn.tail], 1).astype(np.int32)
    facts = np.concatenate([triples[num_test:]] * num_copies)
    facts[:, 1:] += np.repeat(np.arange(num_copies, dtype=np.int32), len(triples) - num_test)[:, None] * num_entities
    predicates = tuple(f"r{i}" for i in range(num_relations))
    constants = tuple(f"e{i}" for i in range(num_entities * num_copies))
    lines = draw_rules(type(drawn)(*(column[num_test:] for column in drawn)), num_rules, num_relations, random)
    rules = parse_rules("\n".join(lines), "rules.txt", constants=constants, predicates=predicates).rules
    tables = (AtomTable(predicates, constants, rows) for rows in (facts, triples[:num_test]))
    train, test = tables
    return KnowledgeGraph("growth", train=train, test=test, rules=rules)


def draw_chain(length: int) -> KnowledgeGraph:
    """Draw a chain whose end cannot be reached from the other end: a derivation takes as many steps as it may."""
    facts = np.zeros((length, 3), np.int32)
    facts[:, 1] = np.arange(length)
    facts[:, 2] = facts[:, 1] + 1
    names = ("next", "reach"), tuple(f"e{i}" for i in range(length + 1))
    queries = np.stack([np.full(100, 1), np.arange(100) % 10, np.zeros(100)], 1).astype(np.int32)
    rule = "reach(X,Y) :- next(X,Z), reach(Z,Y).\n"
    rules = parse_rules(rule, "rules.txt", constants=names[1], predicates=names[0]).rules
    return KnowledgeGraph("chain", train=AtomTable(*names, facts), test=AtomTable(*names, queries), rules=rules)


def run_large_graph(words: list[str]) -> None:
    """Write a graph whose entities follow a power law and whose relations follow Zipf's law, with rules as a miner lists them.

        python -m benchmarks large-graph FOLDER --facts 5000000 --rules 2000

    The body of each rule is a walk through the graph, so that its instances exist. Support and confidence are drawn.
    """
    parser = make_parser(run_large_graph)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("large"))
    parser.add_argument("--facts", type=int, default=5_000_000)
    parser.add_argument("--rules", type=int, default=2_000)
    parser.add_argument("--relations", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(words)
    write_graph(options.folder, options.facts, options.rules, options.relations, options.seed)


# Writing


Words = NDArray[np.uint64]
Batch = tuple[Columns, Words | None]
"""Columns, with their digests or without."""


def write_raw(path: Path, batches: list[tuple[Columns, Words]]) -> None:
    """Write the bytes of each batch to a file of its own."""
    path.mkdir()
    for number, (columns, sequence) in enumerate(batches):
        descriptor = os.open(path / str(number), os.O_WRONLY | os.O_CREAT)
        for array in (KNOWLEDGE_GRAPH.encode(columns) | {SEQUENCE: sequence}).values():
            view = memoryview(array.reshape(-1).view(np.uint8))
            while view:
                view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
        os.close(descriptor)


def write_shards(path: Path, batches: list[Batch], storage: Storage, part: Part = Part(0, 1), threads: int = 0) -> None:  # noqa: B008
    """Write batches one after the other, or by several threads."""
    with TraceWriter(path, HEADER, SYMBOLS, storage=storage, part=part) as writer:
        if threads:
            for _ in writer.append_parts([partial(tuple, batch) for batch in batches], threads):
                pass
        for columns, sequence in [] if threads else batches:
            writer.append(columns, sequence)


def measure_sides(sides: dict[str, Callable[[Path], None]], folder: Path, repeats: int, num_steps: int) -> None:
    """Print a row for each side, whose ratios to the first one are of times of one turn."""
    path = folder / "run"
    times = time_in_turn(
        {title: partial(write, path) for title, write in sides.items()}, repeats, clean=partial(shutil.rmtree, path)
    )
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
    columns = make_columns(0, options.steps, 10)
    num_candidates = len(columns.candidates.query)
    size = max(1, options.batch // 10)
    batches = [
        select_candidates(columns, np.arange(i, min(i + size, num_candidates))) for i in range(0, num_candidates, size)
    ]
    given = [(batch, compute_sequence(batch)) for batch in batches]
    computed = [(batch, None) for batch in batches]
    whole = [(columns, np.concatenate([sequence for _, sequence in given]))]
    arrays = KNOWLEDGE_GRAPH.encode(columns) | {SEQUENCE: whole[0][1]}
    print(f"{options.steps:,} steps, {sum(a.nbytes for a in arrays.values()) / options.steps:.0f} bytes a step")
    one_shard = Storage(shard_steps=1 << 40, commit_seconds=1e9)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        sides: dict[str, Callable[[Path], None]] = {
            "raw write, fsync": partial(write_raw, batches=whole),
            "shard, one append, digests given": partial(write_shards, batches=whole, storage=Storage(shard_steps=1)),
            "shard, digests given": partial(write_shards, batches=given, storage=one_shard),
            "shard, digests computed": partial(write_shards, batches=computed, storage=one_shard),
        }
        measure_sides(sides, folder, options.repeats, options.steps)
        parts = whole * options.shards
        sides = {"raw writes, fsync": partial(write_raw, batches=parts)}
        for level in ("steps", "compact"):
            for num in options.threads:
                storage = Storage(level, shard_steps=1)
                title = f"{options.shards} shards, {level}, {num} threads"
                sides[title] = partial(write_shards, batches=parts, storage=storage, threads=num)
        measure_sides(sides, folder, options.repeats, options.steps * options.shards)


# Comparison


REPEATS = 4


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


def peak_mb() -> float:
    """Return the resident memory of this process, pages of mapped files included."""
    # Not what getrusage says, which starts from the process that this one was made by.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def time_show(path: Path, candidate: int) -> float:
    """Return the milliseconds that it takes to open a trace and show a step."""
    from kgverify.cli.commands.show import open_view

    begin = time.perf_counter()
    open_view(path).step(candidate, 0)
    return (time.perf_counter() - begin) * 1e3


def time_whole(expected: Path, actual: Path) -> tuple[float, float]:
    """Return the seconds of a comparison, and the peak of memory."""
    begin = time.perf_counter()
    found = compare(expected, actual, verifies_content=False)
    assert found.verdict == "AGREE"
    return time.perf_counter() - begin, peak_mb()


def run_comparison(words: list[str]) -> None:
    """Measure the cost of comparing recorded traces, both sides of each ratio in one run.

        python -m benchmarks comparison FOLDER --millions 10

    FOLDER receives two synthetic traces of MILLIONS million steps (10; some 4.6 GB each), kept for the next run.
    """
    parser = make_parser(run_comparison)
    parser.add_argument("folder")
    parser.add_argument("--millions", type=float, default=10, help="millions of steps")
    options = parser.parse_args(words)
    folder, millions = Path(options.folder), options.millions
    folder.mkdir(exist_ok=True)
    expected, actual = folder / f"e{millions:g}", folder / f"a{millions:g}"
    if not expected.exists():
        write_synthetic(expected, round(millions * 1_000_000))
    if not actual.exists():
        (shutil.copytree if expected.is_dir() else shutil.copy)(expected, actual)
    traces = TraceFile(expected), TraceFile(actual)
    pairs = [(a.path, b.path) for a, b in zip(traces[0].files, traces[1].files, strict=True)]
    num_bytes = sum(a.stat().st_size for a, _ in pairs)
    print(f"{millions:g} M steps, {num_bytes / millions / 1e6:.0f} bytes a step, {len(pairs)} files\n")
    print_header("figure", "found", "beside it", "ratio")

    whole, beside = [], []
    for _ in range(REPEATS):
        whole.append(run_apart(time_whole, expected, actual))
        beside += time_in_turn({"": partial(compare_arrays, *traces)}, 1)[""]
    seconds, peak = min(each for each, _ in whole), max(each for _, each in whole)
    row = "full comparison, checksums verified", f"{millions / seconds:.1f} M steps/s, peak {peak:.0f} MB"
    print_row(*row, f"array_equal: {millions / min(beside):.1f} M steps/s", f"{min(beside) / seconds:.2f}")
    shows = []
    for seed in range(9):
        candidate = random.Random(seed).randrange(traces[0].num_candidates)
        shows.append(min(run_apart(time_show, expected, candidate) for _ in range(3)))
    text = f"{min(shows):.1f} / {median(shows):.1f} / {max(shows):.1f} ms (least, median, most of 9)"
    print_row(f"a random step of {millions:g} M shown", text, "", "")
