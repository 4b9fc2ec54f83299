"""Damaged and altered traces: nothing altered may be accepted."""

import json
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
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import xxhash

import kgverify as kv
from benchmarks.shared import ROOT, make_parser, print_header, print_row

sys.path.insert(0, str(ROOT / "tests" / "trace"))
from hostile_traces import CONSTRUCTS, copy_as_plain_h5py, shards
from trace_builders import FACT_LINES, FACTS, HEADER, RANKINGS, RULES, SYMBOLS, make_columns

from benchmarks.traces import write_trace
from kgverify.comparison.compare import compare
from kgverify.comparison.recorded import evidence
from kgverify.comparison.result import Verdict
from kgverify.errors import UserError
from kgverify.trace.model.columns import FIELD_OF, KNOWLEDGE_GRAPH, Digests, select_candidates, starts_of
from kgverify.trace.model.digests import compute_digests, root_digest
from kgverify.trace.model.schema import TraceLevel
from kgverify.trace.model.trace import Trace
from kgverify.trace.read.trace_file import TraceFile, read_trace
from kgverify.trace.write.writer import Clauses, Storage, TraceWriter
from kgverify.verification.recorded import compare_recorded

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


def run_damage(words: list[str]) -> int:
    """Damaged traces by the thousand: flipped bits, fuzzed files, and every construct of the hostile corpus.

        python -m benchmarks damage                      # 10,000 bit flips, 20,000 fuzzed files, the corpus
        python -m benchmarks damage --flips 100 --fuzzed 200

    Each file is read in a child process, so that a crash of the interpreter is counted and not suffered. A file that
    reads must be the very trace it was, since nothing is sealed again; where it is not, a comparison of the two may not
    say AGREE. It is read into memory, and mapped; both must give the same result. Prints a Markdown table; exit code 1
    if anything but refusals and true readings occurred.
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
    print_header("", *kinds)
    for title, counts in rows:
        print_row(title, *(counts[kind] for kind in kinds))
    slowest = sorted(taken, key=lambda name: -taken[name])
    middle = taken[slowest[len(slowest) // 2]]
    print(f"\nrefusals: median {middle:.2f} ms; reading the good file takes {good:.2f} ms; the slowest:")
    for name in slowest[:8]:
        print(f"- {taken[name]:.2f} ms: {name}")
    return 1 if num_bad else 0


# Altered traces


Arrays = dict[str, np.ndarray]

OPTIONAL = (
    "candidates/outcome",
    "candidates/is_limited",
    "candidates/log_probability",
    "steps/depth",
    "steps/choice",
    "steps/outcome",
    "resolvents/score",
)
MAX_ROWS = 1 << 20
"""The rows that an alteration of the structure makes at most: an altered count can ask for more than the memory holds."""

LIMITS = ("max_depth", "max_atoms", "max_resolvents", "exclude_query")
RUN = ("graph", "split", "num_queries", "num_corruptions", "seed", "rank_tolerance")


class Alteration(NamedTuple):
    """An altered copy to make and compare: of which sound trace, from which seed."""

    source: Path
    seed: int


# Reading and writing without kgverify's own readers and writers.


def read_file(path: Path) -> tuple[Arrays, dict[str, Any]]:
    """Return every dataset of a file by path, and the attributes of its root."""
    arrays: Arrays = {}
    with h5py.File(path) as file:

        def add(name: str, found: Any) -> None:
            if isinstance(found, h5py.Dataset):
                arrays[name] = found[()]

        file.visititems(add)
        return arrays, dict(file.attrs)


def write_file(path: Path, arrays: Arrays, attributes: dict[str, Any]) -> None:
    """Write datasets with their checksums."""
    content = b""
    with h5py.File(path, "w", libver=("v110", "v110")) as file:
        for name in sorted(arrays):
            values = np.ascontiguousarray(arrays[name])
            checksum = xxhash.xxh3_64_intdigest(values.tobytes())
            file.create_dataset(name, data=values).attrs["xxh3"] = np.uint64(checksum)
            content += name.encode() + b"\0" + checksum.to_bytes(8, "little")
        for name, value in attributes.items():
            file.attrs[name] = value
        file.attrs["xxh3"] = np.uint64(xxhash.xxh3_64_intdigest(content))


def header_of(arrays: Arrays) -> dict[str, Any]:
    """Return the JSON of the header."""
    header: dict[str, Any] = json.loads(arrays["header"].tobytes())
    return header


def set_header(arrays: Arrays, header: dict[str, Any]) -> None:
    """Replace the header."""
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)


# Alterations: each changes the datasets of one file in place.


def alter_column(arrays: Arrays, random: np.random.Generator, prefixes: tuple[str, ...]) -> None:
    """Change one value of one dataset."""
    names = sorted(name for name in arrays if name.startswith(prefixes) and arrays[name].size)
    if not names:
        return
    name = str(random.choice(names))
    values = arrays[name] = arrays[name].copy()
    flat = values.reshape(-1)
    at, other = int(random.integers(flat.size)), int(random.integers(flat.size))
    if flat.dtype.kind == "f":
        changed = [flat[at] + 1, flat[at] + 1e-3, -flat[at] - 1, 0.0, np.nan, np.inf, -np.inf, 1e300, flat[other]]
        with np.errstate(over="ignore"):
            flat[at] = random.choice(np.array(changed))
        return
    info = np.iinfo(flat.dtype)
    old = int(flat[at])
    pick = [
        old + 1,
        old - 1,
        old + 256,
        old ^ (1 << int(random.integers(info.bits - 1))),
        0,
        info.min,
        info.max,
        int(flat[other]),
    ]
    pick.append(-1 - old)
    flat[at] = np.array(pick[int(random.integers(len(pick)))] % (1 << info.bits), np.uint64).astype(flat.dtype)


def alter_header(arrays: Arrays, random: np.random.Generator) -> None:
    """Change one field of the header to another value, of its type or not."""
    header = header_of(arrays)
    places: list[tuple[dict[str, Any], str]] = []

    def walk(of: dict[str, Any]) -> None:
        for key, value in of.items():
            places.append((of, key))
            if isinstance(value, dict):
                walk(value)

    walk(header)
    of, key = places[int(random.integers(len(places)))]
    old = of[key]
    others: list[Any] = [
        None,
        "x",
        0,
        -1,
        1,
        3,
        1e6,
        2**70,
        [],
        {},
        True,
        False,
        "shortest",
        ["resolvents.origin"],
        ["steps.choice"],
    ]
    if isinstance(old, int | float) and not isinstance(old, bool):
        others += [old + 1, old - 1] * 4
    if isinstance(old, str):
        others += [old + "x", old[::-1], ""] * 3
    if isinstance(old, list):
        others += [old[1:], old + old[:1], old[::-1]] * 3
    of[key] = others[int(random.integers(len(others)))]
    if random.random() < 0.15:
        del of[key]
    set_header(arrays, header)


def declare_error(arrays: Arrays, random: np.random.Generator) -> None:
    """Declare an error of scores that would excuse anything, and change a score."""
    header = header_of(arrays)
    header["engine"]["score_error"] = float(random.choice([1e6, 10.0, 0.5]))
    if random.random() < 0.5:
        header["policy"]["score_errors"] = {"float64": 1e6, "float32": 1e6}
    if random.random() < 0.3:
        header["engine"]["precision"] = str(random.choice(["bf16", "fp16", "unheard-of"]))
    set_header(arrays, header)
    alter_column(arrays, random, ("resolvents/score",))


def alter_rankings(arrays: Arrays, random: np.random.Generator) -> None:
    """Change a rank, drop the rankings, or drop or double one."""
    names = [name for name in arrays if name.startswith("rankings/")]
    if not names:
        return
    way = int(random.integers(6))
    row = int(random.integers(len(arrays[names[0]])))
    if way == 0:
        for name in names:
            del arrays[name]
    elif way == 1:
        for name in names:
            arrays[name] = np.delete(arrays[name], row)
    elif way == 2:
        for name in names:
            arrays[name] = np.append(arrays[name], arrays[name][row])
    elif way == 3:
        name = str(random.choice(["rankings/optimistic", "rankings/pessimistic"]))
        arrays[name] = arrays[name].copy()
        arrays[name][row] = random.choice(np.array([0.0, -1.0, np.nan, np.inf, 1e9, 0.5, 1.5, 1e-320]))
    else:
        alter_column(arrays, random, ("rankings/",))


def alter_names(arrays: Arrays, random: np.random.Generator) -> None:
    """Change a letter of a name, or exchange two names of equal length."""
    name = f"symbols/{random.choice(['predicates', 'constants'])}"
    content, offsets = arrays[f"{name}_bytes"].copy(), arrays[f"{name}_offsets"]
    if random.random() < 0.5 and content.size:
        content[int(random.integers(content.size))] = int(random.integers(97, 123))
    else:
        bounds = list(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True))
        a, b = bounds[int(random.integers(len(bounds)))], bounds[int(random.integers(len(bounds)))]
        if a[1] - a[0] == b[1] - b[0]:
            first = content[slice(*a)].copy()
            content[slice(*a)] = content[slice(*b)]
            content[slice(*b)] = first
    arrays[f"{name}_bytes"] = content


def select_rows(arrays: Arrays, candidates: list[int], steps: np.ndarray | None = None) -> None:
    """Keep candidates, in an order, with their steps; or all candidates with some of the steps, of which one is gone."""
    has_counts = "steps/num_resolvents" in arrays

    def expand(counts: np.ndarray, rows: np.ndarray) -> np.ndarray:
        starts = starts_of(counts)
        return np.concatenate(
            [np.arange(starts[i], starts[i + 1]) for i in rows.tolist()] or [np.zeros(0, int)]
        ).astype(int)

    rows = np.array(candidates)
    counts = arrays["candidates/num_steps"]
    chosen = expand(counts, rows) if steps is None else steps
    if steps is not None:
        owner = np.repeat(np.arange(len(counts)), counts)
        arrays["candidates/num_steps"] = np.bincount(owner[steps], minlength=len(counts)).astype(counts.dtype)
    below: dict[str, np.ndarray] = {"candidates": rows, "steps": chosen, "digests": chosen}
    if has_counts:
        below["resolvents"] = expand(arrays["steps/num_resolvents"], chosen)
    if "steps/num_atoms" in arrays:
        below["steps/goal_atoms"] = expand(arrays["steps/num_atoms"], chosen)
        below["resolvents/atoms"] = expand(arrays["resolvents/num_atoms"], below["resolvents"])
    if "stages/told" in arrays:
        below["stages"] = expand(arrays["stages/num_items"], chosen)
        below |= {"stages/told": chosen, "stages/num_items": chosen}
        below["stages/atoms"] = expand(arrays["stages/num_atoms"], below["stages"])
    for name in arrays:
        group = name if name in below else name.split("/")[0]
        if group in below:
            arrays[name] = arrays[name][below[group]]


def alter_structure(arrays: Arrays, random: np.random.Generator) -> None:
    """Remove, double or move candidates, remove a step, or drop a column."""
    num = len(arrays["candidates/query"])
    counts = [arrays[each.path] for each in KNOWLEDGE_GRAPH.counts if each.path in arrays]
    if not num or any(int(each.sum(dtype=np.uint64)) > MAX_ROWS for each in counts):
        return
    every, row = list(range(num)), int(random.integers(num))
    way = int(random.integers(6))
    if way == 0:
        select_rows(arrays, every[:row] + every[row + 1 :])
    elif way == 1:
        select_rows(arrays, [*every, row])
    elif way == 2:
        select_rows(arrays, random.permutation(every).tolist())
    elif way == 3:
        num_steps = int(arrays["candidates/num_steps"].sum())
        last = np.cumsum(arrays["candidates/num_steps"]) - 1
        gone = int(last[row]) if random.random() < 0.5 else int(random.integers(num_steps))
        select_rows(arrays, every, np.delete(np.arange(num_steps), gone))
    elif way == 4:
        select_rows(arrays, [row] * int(random.integers(1, 9)))
    else:
        arrays.pop(str(random.choice(OPTIONAL)), None)


def alter_program(arrays: Arrays, random: np.random.Generator) -> None:
    """Change a fact, a line or a rule, or drop the program."""
    if random.random() < 0.1:
        for name in [name for name in arrays if name.startswith("program/")]:
            del arrays[name]
        return
    alter_column(arrays, random, ("program/",))


ALTERATIONS: dict[str, tuple[float, Callable[[Arrays, np.random.Generator], None]]] = {
    "column": (6, lambda arrays, random: alter_column(arrays, random, ("candidates/", "steps/", "resolvents/"))),
    "header": (4, alter_header),
    "score error": (1, declare_error),
    "ranking": (2, alter_rankings),
    "name": (1, alter_names),
    "structure": (2, alter_structure),
    "program": (1.5, alter_program),
    "stage": (1.5, lambda arrays, random: alter_column(arrays, random, ("stages/",))),
    "digest": (0.7, lambda arrays, random: alter_column(arrays, random, ("digests/",))),
}


def repair(arrays: Arrays, random: np.random.Generator) -> None:
    """Make counts mostly, and digests mostly, right again."""
    for each in KNOWLEDGE_GRAPH.counts:
        counts = each.path
        lengths = [
            len(array) for path, array in arrays.items() if path in FIELD_OF and FIELD_OF[path].rows == each.counts
        ]
        if counts in arrays and lengths and random.random() < 0.5:
            surplus = int(arrays[counts].sum(dtype=np.uint64)) - lengths[0]
            at = int(random.integers(len(arrays[counts]))) if len(arrays[counts]) else 0
            if surplus and len(arrays[counts]) and 0 <= int(arrays[counts][at]) - surplus < 1 << 15:
                arrays[counts] = arrays[counts].copy()
                arrays[counts][at] = int(arrays[counts][at]) - surplus
    if "steps/goal_atoms" in arrays and random.random() < 0.9:
        try:
            digests = compute_digests(KNOWLEDGE_GRAPH.decode(arrays))
        except (ValueError, IndexError, OverflowError):
            return
        for name in Digests._fields:
            if f"digests/{name}" in arrays:
                arrays[f"digests/{name}"] = getattr(digests, name)


def alter(job: Alteration, folder: Path) -> tuple[Path, str]:
    """Make the altered copy of a job; return its path, and how it was altered."""
    random = np.random.default_rng(job.seed)
    path = folder / f"altered-{job.source.name}"
    shutil.rmtree(path, ignore_errors=True)
    path.unlink(missing_ok=True)
    names, weights = list(ALTERATIONS), np.array([weight for weight, _ in ALTERATIONS.values()])
    ways = random.choice(names, size=int(random.choice([1, 1, 1, 2, 3])), p=weights / weights.sum()).tolist()
    if not job.source.is_dir():
        arrays, attributes = read_file(job.source)
        for way in ways:
            ALTERATIONS[way][1](arrays, random)
        repair(arrays, random)
        write_file(path, arrays, attributes)
        return path, "+".join(ways)
    shutil.copytree(job.source, path)
    manifest = json.loads((path / "manifest.json").read_text())
    if random.random() < 0.15:
        _alter_manifest(manifest, random)
        ways = ["manifest"]
    else:
        _alter_shard(path, manifest, ways, random)
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path, "+".join(ways)


def _alter_manifest(manifest: dict[str, Any], random: np.random.Generator) -> None:
    way = int(random.integers(5))
    shards = manifest["shards"]
    entry = shards[int(random.integers(len(shards)))]
    if way == 0:
        key = str(random.choice(list(entry)))
        entry[key] = random.choice(["x", "0" * 16]) if isinstance(entry[key], str) else entry[key] + 1
    elif way == 1:
        shards.remove(entry)
        for key in ("num_candidates", "num_steps"):
            manifest[key] -= entry[key]
        manifest["root"] = f"{(int(manifest['root'], 16) - int(entry['root'], 16)) % (1 << 64):016x}"
    elif way == 2:
        shards.reverse()
    elif way == 3:
        shards.append(entry)
    else:
        key = str(random.choice(["is_complete", "num_candidates", "num_steps", "root", "format", "schema_version"]))
        manifest[key] = random.choice(np.array([0, 1, 7], object))


def _alter_shard(path: Path, manifest: dict[str, Any], ways: list[str], random: np.random.Generator) -> None:
    """Alter one shard, or what all shards repeat in all of them, and make the manifest right again."""
    shards = manifest["shards"]
    loaded = [read_file(path / each["name"]) for each in shards]
    at = int(random.integers(len(shards)))
    for way in ways:
        ALTERATIONS[way][1](loaded[-1 if way == "ranking" else at][0], random)
    for name in [
        name for name in {*loaded[at][0], *loaded[0][0]} if name.startswith(("header", "symbols/", "program/"))
    ]:
        for arrays, _ in loaded:
            arrays.pop(name, None)
            if name in loaded[at][0]:
                arrays[name] = loaded[at][0][name]
    for entry, (arrays, attributes) in zip(shards, loaded, strict=True):
        repair(arrays, random)
        file = path / entry["name"]
        write_file(file, arrays, attributes)
        entry["size"], entry["xxh3"] = file.stat().st_size, f"{xxhash.xxh3_64_intdigest(file.read_bytes()):016x}"
        entry["num_candidates"] = len(arrays["candidates/query"])
        try:
            columns = KNOWLEDGE_GRAPH.decode(arrays)
            sequence = arrays.get("digests/sequence")
            entry["num_steps"] = int(arrays["candidates/num_steps"].sum(dtype=np.int64))
            if sequence is None:
                sequence = compute_digests(columns).sequence
            if entry["num_steps"] != len(sequence):
                continue
            entry["root"] = f"{root_digest(columns.candidates, sequence):016x}"
        except (ValueError, IndexError, OverflowError, KeyError):
            continue
    for key in ("num_candidates", "num_steps"):
        manifest[key] = sum(entry[key] for entry in shards)
    manifest["root"] = f"{sum(int(entry['root'], 16) for entry in shards) % (1 << 64):016x}"


# The judge, which decodes both traces into names, and knows nothing of the comparison.


def decode(path: Path) -> dict[str, Any]:
    """Return what a trace says, in names: candidates with their steps, rankings, program, and what the header declares."""
    files = [path]
    if path.is_dir():
        files = [path / each["name"] for each in json.loads((path / "manifest.json").read_text())["shards"]]
    parts = [read_file(file)[0] for file in files]
    header = header_of(parts[0])

    def names(kind: str) -> list[str]:
        content, offsets = parts[0][f"symbols/{kind}_bytes"].tobytes(), parts[0][f"symbols/{kind}_offsets"].tolist()
        return [content[a:b].decode(errors="replace") for a, b in pairwise(offsets)]

    predicates, constants = names("predicates"), names("constants")

    def spell(atoms: np.ndarray) -> list[tuple[Any, ...]]:
        def one(names: list[str], value: int) -> Any:
            return names[value] if 0 <= value < len(names) else value

        return [(one(predicates, p), one(constants, a), one(constants, b)) for p, a, b in atoms.tolist()]

    unknown = {name.replace(".", "/") for name in header.get("engine", {}).get("unknown", [])}
    said: dict[str, Any] = {
        "columns": {name for name in parts[0] if name not in unknown},
        "candidates": [],
        "rankings": None,
    }
    for arrays in parts:
        said["candidates"] += _decode_candidates({n: a for n, a in arrays.items() if n not in unknown}, spell)
        if "rankings/query" in arrays:
            rows = zip(
                *(
                    arrays[f"rankings/{n}"].tolist()
                    for n in ("query", "side", "num_ranked", "optimistic", "pessimistic")
                ),
                strict=True,
            )
            said["rankings"] = sorted(map(repr, rows))
    said["candidates"].sort(key=lambda each: repr(each[0]))
    first = parts[0]
    said["facts"] = sorted(map(repr, spell(first["program/facts"]))) if "program/facts" in first else None
    rules = "program/rule_atoms" in first
    said["rules"] = (first["program/rule_lengths"].tolist(), spell(first["program/rule_atoms"])) if rules else None
    said["declared"] = {f"limit {name}": (header.get("limits") or {}).get(name) for name in LIMITS}
    said["declared"] |= {f"run {name}": header.get("run", {}).get(name) for name in RUN}
    policy = header.get("policy", {})
    if header.get("run", {}).get("graph") == "":
        # docs/traces.md: a run without the name of its graph is unknown.
        said["declared"] |= {f"run {name}": None for name in RUN if name != "rank_tolerance"}
    said["declared"] |= {"program": header.get("program_sha256") or None, "policy": policy.get("name") or None}
    said["declared"]["weights"] = policy.get("sha256") or None
    return said


def _decode_candidates(arrays: Arrays, spell: Callable[[np.ndarray], list[tuple[Any, ...]]]) -> list[Any]:
    """Return each candidate: its identity, its own columns, and for each step its columns, goals, resolvents and stages."""
    num = len(arrays["candidates/query"])
    identity = zip(
        arrays["candidates/query"].tolist(),
        arrays["candidates/side"].tolist(),
        spell(arrays["candidates/atom"]),
        strict=True,
    )
    own = [
        n for n in sorted(arrays) if n.startswith("candidates/") and arrays[n].ndim == 1 and n != "candidates/is_true"
    ]
    num_steps = len(next((arrays[n] for n in ("steps/num_resolvents", "digests/sequence") if n in arrays), []))
    steps: list[dict[str, Any]] = [{} for _ in range(num_steps)]

    def give(name: str, values: list[Any], counts: np.ndarray | None = None) -> None:
        starts = None if counts is None else starts_of(counts).tolist()
        for i, step in enumerate(steps):
            step[name] = values[i] if starts is None else values[starts[i] : starts[i + 1]]

    def cut(values: list[Any], counts: np.ndarray) -> list[Any]:
        starts = starts_of(counts).tolist()
        return [values[a:b] for a, b in pairwise(starts)]

    for name in sorted(arrays):
        group = name.split("/")[0]
        values: list[Any] = spell(arrays[name]) if arrays[name].ndim == 2 else arrays[name].tolist()
        if name == "steps/goal_atoms":
            give(name, values, arrays["steps/num_atoms"])
        elif group in ("steps", "digests") or name == "stages/told":
            # Digests follow from columns, and stand for the columns that a level leaves out.
            if group != "digests" or "steps/goal_atoms" not in arrays:
                give(name, values)
        elif name == "resolvents/atoms":
            give(name, cut(values, arrays["resolvents/num_atoms"]), arrays["steps/num_resolvents"])
        elif group == "resolvents":
            give(name, values, arrays["steps/num_resolvents"])
        elif name == "stages/atoms":
            give(name, cut(values, arrays["stages/num_atoms"]), arrays["stages/num_items"])
        elif group == "stages" and name != "stages/num_items":
            give(name, values, arrays["stages/num_items"])
    owned = cut(steps, arrays["candidates/num_steps"])
    return [
        (who, {n: arrays[n][i].item() for n in own}, owned[i] if i < len(owned) else [])
        for i, who in zip(range(num), identity, strict=True)
    ]


def is_semantic(expected: dict[str, Any], actual: dict[str, Any]) -> bool:
    """Return whether two decoded traces differ in anything that both say, or in whether they rank."""
    declared = expected["declared"], actual["declared"]
    for name, value in declared[0].items():
        if value is not None and declared[1][name] is not None and value != declared[1][name]:
            return True
    for name in ("facts", "rules"):
        if expected[name] is not None and actual[name] is not None and expected[name] != actual[name]:
            return True
    if expected["rankings"] != actual["rankings"] or len(expected["candidates"]) != len(actual["candidates"]):
        return True
    shared = expected["columns"] & actual["columns"]
    for (a, own, steps), (b, others, other_steps) in zip(expected["candidates"], actual["candidates"], strict=True):
        if a != b or len(steps) != len(other_steps):
            return True
        for mine, theirs in ((own, others), *zip(steps, other_steps, strict=True)):
            for name in shared & mine.keys() & theirs.keys():
                if not _is_same(name, mine[name], theirs[name]):
                    return True
    return False


def _is_same(name: str, left: Any, right: Any) -> bool:
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(_is_same(name, a, b) for a, b in zip(left, right, strict=True))
    if name == "candidates/log_probability":
        # The documented tolerance.
        return left == right or abs(left - right) <= 1e-9 * max(1.0, abs(left) if np.isfinite(left) else 0.0)
    return bool(left == right)


def judge_altered(job: Alteration, sound: dict[str, Any], folder: Path) -> str:
    """Return the result of comparing an altered trace with the unaltered one, either way, verified as a whole or not."""
    try:
        path, ways = alter(job, folder)
    except Exception as error:
        return f"not made: {type(error).__name__}: {error}"
    try:
        semantic = is_semantic(sound, decode(path))
        kind = "semantic" if semantic else "not semantic"
    except Exception:
        kind = "undecodable"
    is_turned, is_verified = job.seed % 2, job.seed // 2 % 2
    # An altered copy keeps the id of its recording, and is to be found by what it holds.
    evidence._find_same_recording = lambda _: []
    try:
        pair = (path, job.source) if is_turned else (job.source, path)
        report = compare_recorded(*pair, verifies_content=bool(is_verified)).report
        verdict = report.verdict.value
        if kind == "semantic" and "rankings" in report.coverage.not_compared:
            # The verdict's line says so where one side alone has rankings; nothing else may differ.
            rest = ({**sound, "rankings": None}, {**decode(path), "rankings": None})
            kind = "semantic" if is_semantic(*rest) else "named in the verdict"
    except UserError:
        verdict = "refused"
    except Exception as error:
        return f"bug: {type(error).__name__}: {error}; {kind}: {ways}"
    return f"{kind} {verdict}: {ways}"


def work_altered(jobs: list[Alteration], index: int, folder: Path, connection: Any) -> None:
    """Judge the jobs from `index` on, telling each result at once, so that the one that crashes is known."""
    sound: dict[Path, dict[str, Any]] = {}
    for i in range(index, len(jobs)):
        source = jobs[i].source
        if source not in sound:
            sound[source] = decode(source)
            # The known comparisons, once in a process, are no part of the time of a trace.
            compare_recorded(source, source)
        signal.alarm(int(3 * SECONDS))
        result = judge_altered(jobs[i], sound[source], folder)
        signal.alarm(0)
        connection.send((i, result))
    connection.send(None)


def record_sources(folder: Path) -> list[Path]:
    """Record sound traces of every level, and write each again as a folder of shards."""
    sources = []
    for level in TraceLevel:
        path = folder / f"{level.value}.h5"
        kv.record(
            "countries", path, "reference", queries=2, corruptions=4, options=kv.RecordingOptions(level=level.value)
        )
        sources.append(path)
        trace = kv.open_trace(path).load()
        if level in (TraceLevel.STEPS, TraceLevel.DEEP):
            shards = folder / f"{level.value}-shards"
            clauses = Clauses(trace.facts, trace.fact_lines, trace.rules)
            with TraceWriter(
                shards, trace.header, trace.symbols, clauses=clauses, storage=Storage(level.value, shard_steps=60)
            ) as writer:
                for rows in np.array_split(np.arange(len(trace.columns.candidates.query)), 5):
                    writer.append(select_candidates(trace.columns, rows))
                if trace.rankings is not None:
                    writer.set_rankings(trace.rankings)
            sources.append(shards)
    return sources


def run_altered(words: list[str]) -> int:
    """Traces altered on purpose, with checksums and digests made right again, compared with the unaltered ones.

        python -m benchmarks altered                    # 5,000 traces of all levels
        python -m benchmarks altered --num 200 --first 1000 --keep bad

    A sound trace is read and written by h5py alone. One to three values are altered: in columns, header, rankings,
    program, names, outputs of stages, digests or the manifest. Candidates, steps and columns are removed, doubled or
    moved. Then every checksum, most counts and most digests are made right again. A judge that knows nothing of the
    comparison decodes both traces into names and decides whether what was recorded differs. A semantic change must end
    in DIVERGE, INCONCLUSIVE or a refusal, whether the files are verified as a whole or only where they differ; rankings
    of one side alone may be named in the verdict as not compared. Prints a Markdown table; exit code 1 if a semantic
    change got AGREE, or anything ended in a bug or a signal.
    """
    parser = make_parser(run_altered)
    parser.add_argument("--num", type=int, default=5_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--keep", type=Path, help="a folder for the traces that were not judged as they should")
    options = parser.parse_args(words)
    counts: dict[str, Counter[str]] = {}
    num = num_bad = 0
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sound").mkdir()
        (folder / "work").mkdir()
        sources = record_sources(folder / "sound")
        jobs = [
            Alteration(sources[seed % len(sources)], seed) for seed in range(options.first, options.first + options.num)
        ]
        for job, answer in run_jobs(jobs, folder / "work", work_altered):
            result, num = answer.partition(":")[0], num + 1
            is_bad = result in ("semantic AGREE", "bug", "crash", "hang")
            if result == "not made":
                print(f"{answer}: {job.source.name}, seed {job.seed}", file=sys.stderr)
            kind, _, verdict = ("not made", "", "") if result == "not made" else result.rpartition(" ")
            counts.setdefault(kind, Counter())[verdict] += 1
            if is_bad:
                num_bad += 1
                print(f"{answer}: {job.source.name}, seed {job.seed}", file=sys.stderr)
                if options.keep:
                    options.keep.mkdir(exist_ok=True)
                    path, _ = alter(job, folder / "work")
                    (shutil.copytree if path.is_dir() else shutil.copy)(path, options.keep / f"{job.seed}-{path.name}")
            if time.monotonic() - begin > options.seconds:
                print(f"stopped after seed {job.seed}")
                break
    verdicts = sorted({verdict for each in counts.values() for verdict in each})
    print_header(f"{num:,} altered traces", *verdicts)
    for kind, each in sorted(counts.items()):
        print_row(kind, *(each[verdict] for verdict in verdicts))
    print(f"\nAGREE over a semantic change, bugs, crashes and hangs: {num_bad}")
    return 1 if num_bad else 0
