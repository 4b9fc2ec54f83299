"""The known-answer test of the trace layer: known columns are written by the real writers, and read by the real readers.

Batches fill shards of unequal sizes, bring digests of their own or none, and are appended by several threads; a recording is
resumed; malformed columns and folders of another run must be refused.
"""

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from judge_answers.trace_formula import LARGE, LONG, make_columns
from judge_answers.trace_reading import (
    RANKINGS,
    SYMBOLS,
    KnownTrace,
    check_reading,
    require_columns,
    require_known,
)
from run_engines import memory_folder

from kgverify import EngineInfo, Limits, LoopWriter, TraceWriter, UserError
from kgverify.engines.protocol import StepDigests, join_digests
from kgverify.errors import InternalError
from kgverify.garbage_collection import without_garbage_collection
from kgverify.kinds import KNOWLEDGE_GRAPH
from kgverify.program.program import Symbols
from kgverify.trace.files.manifest import Part, Shard, read_manifest, render_hash
from kgverify.trace.model.columns import Columns, Digests, StepBatch
from kgverify.trace.model.digests import compute_sequence, root_digest
from kgverify.trace.model.header import Header, PolicyInfo
from kgverify.trace.read.data_file import BLOCK_STEPS
from kgverify.trace.read.trace_file import TraceFile, check_root, read_trace
from kgverify.trace.write.loop_writer import as_column
from kgverify.trace.write.writer import Clauses, Storage

DROPPED: Final = ("steps.dropped_atoms", "steps.dropped_resolvents")
FACTS: Final = np.array([[i % 2, i % 3, 2] for i in range(24)], np.int32)
OTHERS: Final = Symbols(SYMBOLS.predicates, ("a", "b", "d"))
"""Names of which only the predicates are those of the other traces."""
HEADER: Final = Header(EngineInfo("known"), Limits(max_depth=9), PolicyInfo("known"), "")
_WAIT: Final = 10.0
"""The longest that a thread waits for another one, in seconds."""

Batch = tuple[tuple[int, ...], bool]
"""The numbers of candidates, and whether their digests are given."""

_FIRST: Final[tuple[tuple[Batch, tuple[int, int]], ...]] = (
    (((0, 1, LONG), False), (3, 0)),
    (((3,), True), (4, 0)),
    (((5,), False), (5, 5)),
    (((6,), True), (6, 5)),
    (((7, 4), False), (8, 5)),
)
"""Batches before the interruption, with the candidates that are then appended and committed: the third fills a shard."""
_SECOND: Final[tuple[Batch, ...]] = (((10,), False), ((LARGE, 9), True), ((11, 12), False))
"""Batches appended by threads: the second fills a shard, whose last candidate is alone in its block."""
_STORAGE: Final = Storage(shard_steps=303, commit_seconds=1e9)
_NUMBERS: Final = (0, 1, LONG, 3, 5, 6, 7, 4, 10, LARGE, 9, 11, 12)
_STARTS: Final = (0, 5, 11, 13)


@cache
@without_garbage_collection()
def check_known_traces() -> None:
    """InternalError unless known columns are written, refused, resumed and read as they must be."""
    with memory_folder() as folder:
        for check in (_check_shards, _check_packed, _check_loop, _check_digests):
            with _reported():
                check(folder)
    with _reported():
        _check_types()
        _check_joined_digests()


def check_loaded_recorder() -> None:
    """InternalError if this process has loaded the compiled evaluator, and it does not record known steps as they are."""
    if "kgverify.prover.tick.stage_ticks" in sys.modules:
        from known_steps import check_known_steps

        check_known_steps()


@contextmanager
def _reported() -> Iterator[None]:
    """Raise an InternalError for what goes wrong inside of the context, unless the system is the cause."""
    try:
        yield
    except (InternalError, OSError):
        raise
    except Exception as error:
        if isinstance(error.__cause__, OSError):
            raise
        raise InternalError(f"a known trace cannot be written or read: {error}") from error


def _is_refused(act: Callable[[], object]) -> bool:
    try:
        act()
    except UserError as error:
        if isinstance(error.__cause__, OSError):
            raise
        return True
    return False


def _open(path: Path, storage: Storage, **changes: Any) -> TraceWriter:
    options: dict[str, Any] = {"header": HEADER, "symbols": SYMBOLS}
    options |= changes
    return TraceWriter(path, options.pop("header"), options.pop("symbols"), storage=storage, **options)


def _with_digests(columns: Columns) -> StepBatch:
    """Return columns with their digests, as an engine may give them."""
    return columns, compute_sequence(columns)


def _make_batch(numbers: Iterable[int], has_digests: bool) -> StepBatch:
    # The facts have numbers below their count.
    columns = make_columns(numbers, num_clauses=len(FACTS))
    return _with_digests(columns) if has_digests else (columns, None)


class _Interruption(Exception):
    """The end of a recording that is to be resumed."""


def _check_shards(folder: Path) -> None:
    """Record shards, with an interruption; read what is safe, the manifest and the trace."""
    path = folder / "shards"
    own: dict[str, Any] = {"clauses": Clauses(FACTS)}
    with suppress(_Interruption), _open(path, _STORAGE, **own) as writer:
        _refuse_malformed(writer, [*_list_malformed()])
        for number, (batch, counts) in enumerate(_FIRST):
            writer.append(*_make_batch(*batch))
            found = writer.num_appended, writer.num_committed
            require_known(found == counts, f"{found} candidates are safe, expected {counts}")
            if not number:
                # Each of these would fill a shard.
                _refuse_malformed(writer, [*_list_malformed()][::7])
                _refuse_others(writer)
        raise _Interruption
    _refuse_resuming(path, own)
    with _open(path, _STORAGE, resume=True, **own) as writer:
        require_known(writer.num_appended == writer.num_committed == 8, "the candidates of a recording that is resumed")
        before = make_columns(_NUMBERS[:8]).candidates
        require_columns([writer.committed_candidates()], [before], "a recording that is resumed")
        require_known(len(read_manifest(path.with_name("shards.partial")).shards) == 2, "what was committed")
        appended = [*writer.append_parts(_list_parts(), len(_SECOND))]
        require_known([len(each.query) for each in appended] == [1, 2, 2], "the candidates that threads appended")
        require_known((writer.num_appended, writer.num_committed) == (13, 11), "what is safe after threads appended it")
        writer.commit()
        require_known(writer.num_committed == 13, "what is safe once it was forced to disk")
        writer.set_rankings(RANKINGS)
    check_reading(KnownTrace(path, _NUMBERS, _STARTS, num_clauses=len(FACTS)))
    for shard, (begin, end) in zip(read_manifest(path).shards, pairwise(_STARTS), strict=True):
        columns, sequence = _make_batch(_NUMBERS[begin:end], has_digests=True)
        assert sequence is not None
        root = root_digest(columns.candidates, sequence)
        counted = shard.num_candidates, shard.num_steps, shard.root
        require_known(counted == (end - begin, len(sequence), render_hash(root)), f"the manifest with {counted}")
        _check_roots(root, shard)


def _list_parts() -> Iterator[Callable[[], StepBatch]]:
    """Yield the functions that read the last batches, of which the first waits for the last."""
    has_begun = threading.Event()

    def read_first() -> StepBatch:
        has_begun.wait(_WAIT)
        return _make_batch(*_SECOND[0])

    def read_last() -> StepBatch:
        has_begun.set()
        return _make_batch(*_SECOND[-1])

    yield read_first
    yield partial(_make_batch, *_SECOND[1])
    yield read_last


def _refuse_malformed(writer: TraceWriter, malformed: Iterable[tuple[str, Columns]]) -> None:
    """InternalError if malformed columns are taken, with digests of their own or without."""
    for what, columns in malformed:
        for sequence in (None, np.zeros(len(columns.steps.depth), np.uint64)):
            require_known(_is_refused(partial(writer.append, columns, sequence)), f"a wrong {what} is taken")


def _refuse_others(writer: TraceWriter) -> None:
    """InternalError if columns of other types are taken."""
    columns, sequence = _make_batch((3, 4), has_digests=True)
    single = columns._replace(resolvents=columns.resolvents._replace(score=columns.resolvents.score.astype(np.float32)))
    long: Any = columns.candidates.query.astype(np.int64)
    wide = columns._replace(candidates=columns.candidates._replace(query=long))
    for what, other in (("precision", single), ("type", wide)):
        require_known(_is_refused(partial(writer.append, other, sequence)), f"columns of another {what} are taken")


def _refuse_resuming(path: Path, own: dict[str, Any]) -> None:
    """InternalError if a recording is resumed by another run, of the same size."""
    others: dict[str, dict[str, Any]] = {
        "other facts": {"clauses": Clauses(FACTS[::-1].copy())},
        "other names": {"symbols": OTHERS},
        "other limits": {"header": msgspec.structs.replace(HEADER, limits=Limits(max_depth=8))},
        "another part": {"part": Part(0, 2)},
    }
    for what, changes in others.items():
        resume = partial(_open, path, _STORAGE, resume=True, **{**own, **changes})
        require_known(_is_refused(resume), f"a recording is resumed with {what}")
    absent = partial(_open, path, replace(_STORAGE, absent=frozenset(DROPPED)), resume=True, **own)
    require_known(_is_refused(absent), "a recording is resumed without columns that it has")
    require_known(_is_refused(partial(_open, path, _STORAGE, **own)), "a recording begins where another one was left")


def _check_roots(root: int, shard: Shard) -> None:
    """InternalError unless a root that differs in one digit is refused."""
    check_root(root, shard, Path(shard.name))
    for digit in range(16):
        other = partial(check_root, root ^ (1 << 4 * digit), shard, Path(shard.name))
        require_known(_is_refused(other), f"a root that differs in digit {digit} is taken")


def _check_packed(folder: Path) -> None:
    """Read an archive, in single precision and without two columns."""
    known = KnownTrace(folder / "packed.h5", [0, LONG, 1, 3, 4, 9], [0, 6], is_packed=True)
    with _open(known.path, Storage(absent=frozenset(DROPPED), is_archived=True)) as writer:
        writer.append(known.make(range(6)))
        writer.set_rankings(RANKINGS)
    check_reading(known)


def _check_digests(folder: Path) -> None:
    """Read digests alone, of more candidates than a block has, whose header names columns that they do not count."""
    path, num = folder / "digests", BLOCK_STEPS + 1
    # One step, none, and so on.
    columns = make_columns(3 - np.arange(num) % 2 * 2)
    sequence = np.arange(len(columns.steps.depth), dtype=np.uint64) << np.uint64(40)
    header = msgspec.structs.replace(HEADER, level="digests", absent=DROPPED)
    # The batch fills a shard, and nothing is left for the last one.
    with _open(path, Storage(shard_steps=1), header=header) as writer:
        writer.append(columns, sequence)
    file = TraceFile(path)
    require_known(file.is_complete, "a trace whose last shard is full")
    require_known(file.header.absent == DROPPED, "the columns that digests do not count")
    require_known([*file.split()] == [(0, num - 1), (num - 1, num)], "blocks of many candidates")
    require_known(file.compute_root() == root_digest(columns.candidates, sequence), "the root of many candidates")
    require_known(np.array_equal(file.load().digests.sequence, sequence), "the digests of many candidates")
    (last,) = file.read_digests(num - 2, num)
    require_known(last["sequence"].tolist() == sequence[-1:].tolist(), "the digests of the last candidates")
    _check_names(folder, path)


def _check_names(folder: Path, path: Path) -> None:
    """InternalError if a trace takes the names of another one of which only the predicates agree."""
    file, other = TraceFile(folder / "loop.h5"), TraceFile(path)
    file.share_symbols(other)
    require_known(file.symbols == OTHERS, "the names of another trace")


def _list_malformed() -> Iterator[tuple[str, Columns]]:
    """Yield columns of which one is malformed: a code that does not exist, or a count of other rows."""
    right = make_columns([4], num_clauses=len(FACTS))
    for path, wrong in (
        ("candidates/side", 3),
        ("candidates/outcome", -1),
        ("candidates/is_limited", 2),
        ("candidates/num_steps", 2),
        ("steps/outcome", 4),
        ("steps/num_resolvents", 90),
        ("steps/num_atoms", 9),
        ("resolvents/kind", 4),
        ("resolvents/num_atoms", 7),
        ("resolvents/origin_kind", 3),
    ):
        group, name = path.split("/")
        level = getattr(right, group)
        column = getattr(level, name).copy()
        column[-1] = wrong
        yield path, right._replace(**{group: level._replace(**{name: column})})
    made = right.resolvents
    yield (
        "resolvents/origin",
        right._replace(resolvents=made._replace(origin_kind=made.kind * 0 + 2, origin=~made.origin)),
    )
    lacking = right.candidates._replace(query=np.zeros(2, np.int32))
    yield "candidates/query", right._replace(candidates=lacking)


def _check_loop(folder: Path) -> None:
    """Write from lists by the loop writer, in three batches, and let it count queries and see what was limited."""
    path, dropped = folder / "loop.h5", ((0, 0), (1, 0), (0, 1), (2, 70_000))
    batches = ((0, 3), (1,), (4, 7, 10))
    known = make_columns([number for batch in batches for number in batch])
    counts = np.array([dropped[step // 2 % 4] for step in range(len(known.steps.depth))], np.uint32)
    # By the number of steps: 2, 1, 0, 3, 5 and 2 of them, two with equal counts each.
    is_limited = [0, 1, 0, 1, 1, 1]
    begin = 0
    with LoopWriter(path, engine="known", predicates=OTHERS.predicates, constants=OTHERS.constants) as writer:
        for batch in batches:
            columns = make_columns(batch)
            end = begin + len(columns.steps.depth)
            steps = columns.steps._replace(dropped_atoms=counts[begin:end, 0], dropped_resolvents=counts[begin:end, 1])
            given = columns._replace(steps=steps)[:3]
            groups: list[dict[str, Any]] = [
                {name: column.tolist() for name, column in group._asdict().items()} for group in given
            ]
            for name in ("query", "side", "is_limited"):
                del groups[0][name]
            writer.append(*groups)
            begin = end
    candidates = known.candidates._replace(
        query=np.arange(6, dtype=np.int32), side=np.full(6, 2, np.int8), is_limited=np.array(is_limited, np.uint8)
    )
    steps = known.steps._replace(dropped_atoms=counts[:, 0], dropped_resolvents=counts[:, 1])
    found = read_trace(path).columns
    require_columns(found[:3], [candidates, steps, known.resolvents], "what a loop wrote")


def _check_types() -> None:
    """InternalError unless each column of integers takes the least and the greatest value of its type, and none beyond."""
    for field in KNOWLEDGE_GRAPH.columns:
        dtype = np.dtype(field.dtypes[0])
        if dtype.kind not in "iu" or field.width:
            continue
        low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
        require_known(
            as_column(field, np.array([low, high], dtype), "").tolist() == [low, high], f"the values of {field.path}"
        )
        for value in (low - 1, high + 1) if dtype.itemsize < 8 else (low - 1,) if low == 0 else ():
            given = np.array([value], np.int64)
            require_known(_is_refused(partial(as_column, field, given, "")), f"{value} is taken for {field.path}")


def _check_joined_digests() -> None:
    """Join the digests of one pool, of two and of three."""
    words = np.arange(12, dtype=np.uint64)
    parts = [
        StepDigests(np.array([i, 1], np.uint32), Digests(*(words[3 * i : 4 * i + 1] + 20 * k for k in range(3))))
        for i in range(3)
    ]
    for num in (1, 2, 3):
        joined = join_digests(parts[:num])
        counts = [count for i in range(num) for count in (i, 1)]
        rows = [row for i in range(num) for row in range(3 * i, 4 * i + 1)]
        found = joined.num_steps.tolist(), [column.tolist() for column in joined.digests]
        require_known(
            found == (counts, [[row + 20 * k for row in rows] for k in range(3)]), f"the digests of {num} pools"
        )
