"""The writer of traces: one file if it is small, else shards that are safe on disk once committed."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Final, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.errors import UserError
from kgverify.files.writing import make_folder, noop
from kgverify.program.program import Symbols
from kgverify.trace.files.journal import JournalWriter, Start
from kgverify.trace.files.manifest import (
    Manifest,
    Part,
    list_shards,
    new_trace,
    put_in_place,
    shard_name,
    write_manifest,
)
from kgverify.trace.files.output_path import (
    check_no_partial,
    check_output_path,
    explain_failed_write,
    lock_trace,
    partial_of,
    remove_left_over,
    remove_partial,
)
from kgverify.trace.hdf5.writing import ArrayParts, write_arrays
from kgverify.trace.model.columns import (
    Candidates,
    Columns,
    Rankings,
    StepBatch,
    empty_columns,
    join_candidates,
)
from kgverify.trace.model.digests import compute_sequence
from kgverify.trace.model.header import SCHEMA_VERSION, Header, unknown_columns
from kgverify.trace.model.levels import TraceLevel, has_goals, is_kept, packing_of, parse_level
from kgverify.trace.model.schema import OPTIONAL_COLUMNS, SEQUENCE, decode_columns, encode_columns, encode_level
from kgverify.trace.model.trace import NOTHING_UNKNOWN, Trace, Unknown
from kgverify.trace.model.validate import check_appended, check_columns, check_rankings, check_types
from kgverify.trace.write.commit_queue import CommitQueue, CommitTicket
from kgverify.trace.write.encode import NO_CLAUSES, Clauses, encode_shared, encode_trace
from kgverify.trace.write.resume import read_unfinished
from kgverify.trace.write.shards import UncommittedBatches, write_shard
from kgverify.version import __version__

_WHOLE: Final = 1 << 62
"""The maximum of steps or bytes in a shard if no shards are wanted."""


@dataclass(frozen=True)
class Storage:
    """The options for what a trace stores, and in which files.

    level:       a `TraceLevel`: the columns to keep; None for the level of the header
    absent:      columns that the prover does not know, named as in `Trace.fields`; not written. Those in `EngineInfo.unknown`
                 need not be repeated
    is_archived: pack datasets as small as HDF5's own filters can
    shard_steps: steps held in memory before they are committed as a shard in `<path>.partial`
    shard_bytes: bytes of columns held in memory likewise; never more than these and one batch are held
    """

    level: str | None = None
    absent: frozenset[str] = frozenset()
    is_archived: bool = False
    shard_steps: int = 1_000_000
    shard_bytes: int = 1 << 30


@dataclass(frozen=True)
class Durability:
    """The options for what survives a crash. A journal keeps what `append` took when the process ends, at any moment.

    journal_seconds: a crash of the machine loses at most what was appended in this time, or
    journal_bytes:   in this many bytes and one batch. 0 seconds force each batch to disk
    has_journal:     without a journal, what is not in a shard yet is lost with the process
    """

    journal_seconds: float = 5.0
    journal_bytes: int = 64 << 20
    has_journal: bool = True


class TraceWriter:
    """A context manager that writes a trace at `path`, where nothing appears before the trace is complete.

    clauses: the facts and rules of the program; optional
    storage: what to store, and when to start another shard
    durability: when to force the journal to disk
    resume:  resume the recording in `<path>.partial`, if there is one: skip the first `num_appended` candidates
    overwrites: replace a trace that exists at `path`
    part:    set if this is one writer of several, each with its own path; `unite` joins their traces
    unknown: data beyond this schema, from a trace that is written again

    Each recording gets a random id in its header, unless the header has one: it is a copy of that recording then.
    An error inside the context leaves what was appended in `<path>.partial`. UserError for what cannot be written,
    with the candidates that are safe, for a `<path>.partial` that exists without `resume`, or belongs to another run, and
    while another process writes the same trace.

    Example:
        >>> import kgverify as kv
        >>> _ = kv.record("countries", "mine.h5", "reference", queries=1, corruptions=2)
        >>> trace = kv.open_trace("mine.h5").load()
        >>> with kv.TraceWriter("copy.h5", trace.header, trace.symbols) as writer:
        ...     writer.append(trace.columns)
        ...     writer.set_rankings(trace.rankings)
        >>> kv.open_trace("copy.h5").load().root == trace.root
        True
    """

    def __init__(
        self,
        path: Path | str,
        header: Header,
        symbols: Symbols,
        *,
        clauses: Clauses = NO_CLAUSES,
        storage: Storage = Storage(),
        durability: Durability = Durability(),
        resume: bool = False,
        overwrites: bool = True,
        part: Part | None = None,
        unknown: Unknown = NOTHING_UNKNOWN,
    ) -> None:
        self._path, self._where = Path(path), str(path)
        self._partial = partial_of(self._path)
        self._symbols, self._part = symbols, part
        self._creator = header.creator or f"kgverify {__version__}"
        self._storage, self._durability = storage, durability
        self._absent = frozenset(storage.absent) | (OPTIONAL_COLUMNS & unknown_columns(header.engine))
        self._level = parse_level(storage.level or header.level, self._where)
        self._packing = packing_of(self._level, is_archived=storage.is_archived)
        if not header.recording and storage.shard_steps < _WHOLE:
            header = msgspec.structs.replace(header, recording=token_hex(8))
        shared = encode_shared(header, symbols, clauses, self._level, self._absent, unknown, self._where)
        self._whole = shared | dict(unknown.arrays)
        num_facts = None if clauses.facts is None else len(clauses.facts)
        num_rules = len(header.clauses.rules) or None
        self._check = partial(check_columns, where=self._where, num_rules=num_rules, num_facts=num_facts)
        self._batches = UncommittedBatches()
        self._rankings: Rankings | None = None
        self._score_dtype: np.dtype[np.floating] | None = None
        self._is_closed = False
        self._queue = CommitQueue()
        self._manifest: Manifest = list_shards((), is_complete=False, creator=self._creator, part=part)
        self._journal = JournalWriter(
            self._partial,
            Start(0, self._creator, tuple(sorted(self._absent)), storage.is_archived),
            shared,
            max_seconds=durability.journal_seconds,
            max_bytes=durability.journal_bytes,
        )
        self._committed = [empty_columns().candidates]
        self._num_appended = 0
        self._lock = lock_trace(self._path, overwrites=overwrites)
        try:
            check_output_path(self._path)
            if resume:
                self._resume(shared)
            elif storage.shard_steps < _WHOLE:
                check_no_partial(self._partial)
        except BaseException:
            self._lock.release()
            raise
        self._num_shards = len(self._manifest.shards)  # with those that are being written
        self._num_safe = self._num_appended

    @property
    def level(self) -> TraceLevel:
        """The level of the trace."""
        return self._level

    @property
    def num_committed(self) -> int:
        """The candidates that even a crash of the machine does not lose, from the first on."""
        return self._num_safe

    @property
    def num_appended(self) -> int:
        """The candidates in shards and in the journal, from the first on: the end of the process loses none of them."""
        return self._num_appended

    def append(self, columns: Columns, sequence: NDArray[np.uint64] | None = None) -> None:
        """Add candidates with all their steps, in any order; the arrays must not change before the next `commit`.

        A batch that fills a shard is committed at once instead of being written to the journal first.
        `append_parts` appends several batches at a time.

        sequence: uint64 [T], the digests of these steps, if they were computed elsewhere: a reader compares them with
                  the columns. With them, atoms that the level leaves out need not be given
        """
        with self._queue.reserve() as ticket:
            self._append(ticket, columns, sequence)

    def append_parts(self, parts: Iterable[Callable[[], StepBatch]], num_threads: int = 1) -> Iterator[Candidates]:
        """Append each part in order while the next one is made; yield its candidates when `append` would have returned.

        parts:       functions that read a part, each called in its own thread
        num_threads: parts that are read, checked, packed and written at the same time. That many, and one shard, are in
                     memory, beside the part being made. Parts that fill no shard wait for those before them

        The trace is the same for any `num_threads`. After an error in one part, the parts before it are stored, those
        after it are not, and the writer is closed.
        """

        def append(ticket: CommitTicket, read: Callable[[], StepBatch]) -> Candidates:
            with ticket:
                try:
                    columns, sequence = read()
                    self._append(ticket, columns, sequence)
                except BaseException:
                    ticket.wait_for_others()
                    self._is_closed = True
                    raise
                return columns.candidates

        with ThreadPoolExecutor(num_threads, thread_name_prefix="append") as pool:
            waiting: deque[Future[Candidates]] = deque()
            for read in parts:
                if len(waiting) == num_threads:
                    yield waiting.popleft().result()
                # None of them may be cancelled: every ticket that was reserved must be used.
                waiting.append(pool.submit(append, self._queue.reserve(), read))
            while waiting:
                yield waiting.popleft().result()

    def sync(self) -> None:
        """Force the journal to disk, so that a crash loses nothing appended so far. Without a journal, `commit`."""
        if not self._durability.has_journal:
            self.commit()
            return
        with self._queue.reserve() as ticket:
            ticket.wait_for_others()
            with self._explaining_failures("the journal", ticket):
                if self._journal.sync():
                    self._num_safe = self._num_appended

    def commit(self) -> None:
        """Force what was appended so far to disk, as a shard; do nothing if nothing was."""
        with self._queue.reserve() as ticket:
            ticket.wait_for_others()
            if self._batches.num_candidates:
                self._commit_batches(ticket, self._batches)

    def set_rankings(self, rankings: Rankings) -> None:
        """Set the rankings, before closing."""
        check_types(encode_level("rankings", rankings), self._where)
        check_rankings(rankings, self._where)
        self._rankings = rankings

    def committed_candidates(self) -> Candidates:
        """Return the candidates that a resumed recording already has, as `num_appended` counts them."""
        return join_candidates([*self._committed, self._batches.candidates()])

    def close(self) -> None:
        """Write what is left and move the trace to its path; a second call does nothing."""
        with self._lock, self._queue.reserve() as ticket:
            ticket.wait_for_others()
            if not self._is_closed:
                with self._explaining_failures("the trace", ticket):
                    self._finish(ticket)
            self._is_closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        with self._lock:
            if kind is None:
                self.close()
            elif self._journal.is_open:
                self._journal.save()
                self._is_closed = True

    def _finish(self, ticket: CommitTicket) -> None:
        if self._manifest.shards or self._part is not None:
            if not self._manifest.is_complete:
                make_folder(self._partial)
                self._commit(ticket, self._num_shards, self._batches, is_complete=True)
            remove_left_over(self._partial)
            put_in_place(self._partial, self._path)
            return
        arrays = self._encode(self._batches, self._rankings)
        with new_trace(self._path) as path:
            write_arrays(path, arrays, self._creator, self._packing)
        self._journal.end()
        remove_partial(self._partial)

    @contextmanager
    def _explaining_failures(self, what: str, ticket: CommitTicket) -> Iterator[None]:
        """Close the writer on a failed write, and raise a UserError with the candidates that are safe."""
        try:
            yield
        except OSError as error:
            ticket.wait_for_others()
            is_saved = self._journal.save()
            self._is_closed = True
            self._lock.release()
            num_safe = self._num_appended if is_saved else max(self._num_safe, self._manifest.num_candidates)
            raise explain_failed_write(what, error, num_safe, self._partial, self._where) from error

    def _append(self, ticket: CommitTicket, columns: Columns, sequence: NDArray[np.uint64] | None) -> None:
        self._refuse_if_closed()
        arrays = encode_columns(columns) | ({} if sequence is None else {SEQUENCE: sequence})
        check_appended(arrays, self._level, self._where)
        num_candidates = len(columns.candidates.query)
        check: Callable[[], None] = partial(self._check, columns)
        if sequence is None:
            # Digests of invalid columns cannot be computed.
            check()
            check = noop
            if not has_goals(self._level):
                # Not computable from what the level keeps.
                sequence = arrays[SEQUENCE] = compute_sequence(columns, self._absent)
        ticket.wait_to_begin()
        storage = self._storage
        full = self._batches.fill(columns, sequence, storage.shard_steps, storage.shard_bytes)
        if not num_candidates or full is None:
            ticket.wait_for_others()
            check()
        self._check_order(columns)
        if not num_candidates:
            return
        if full is not None:
            self._commit_batches(ticket, full, check)
            return
        if self._durability.has_journal:
            absent = {name.replace(".", "/") for name in self._absent}
            kept = {name: array for name, array in arrays.items() if name not in absent and is_kept(name, self._level)}
            with self._explaining_failures("the journal", ticket):
                if self._journal.append(self._num_shards, kept, num_candidates, len(columns.steps.depth)):
                    self._num_safe = self._num_appended + num_candidates
        self._batches.add(columns, sequence)
        self._num_appended += num_candidates

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise ValueError("the writer is closed")

    def _check_order(self, columns: Columns) -> None:
        """Raise a UserError for columns that cannot follow those appended before."""
        self._refuse_if_closed()
        if self._manifest.is_complete and len(columns.candidates.query):
            raise UserError(
                "found further candidates, but all were committed before",
                where=str(self._partial),
                fix="skip the first `num_appended` candidates",
            )
        dtype = columns.resolvents.score.dtype
        if self._score_dtype is not None and self._score_dtype != dtype:
            raise UserError(
                f"dtype is {dtype}, expected {self._score_dtype} as before",
                where=f"{self._where}:resolvents/score",
                fix="append scores of one type",
            )
        self._score_dtype = dtype

    def _resume(self, shared: dict[str, NDArray[np.generic]]) -> None:
        found = read_unfinished(self._partial, self._manifest, self._part, shared, self._absent, self._level)
        self._manifest, self._score_dtype = found.manifest, found.score_dtype
        self._committed += found.candidates
        if found.header is not None:
            shared["header"] = self._whole["header"] = found.header
        self._num_appended = found.manifest.num_candidates
        if found.journal is None:
            return
        if self._durability.has_journal:
            with self._queue.reserve() as ticket, self._explaining_failures("the journal", ticket):
                self._journal.resume(len(found.manifest.shards), found.journal)
        for batch in found.journal.batches:
            columns = decode_columns(batch.arrays)
            check_appended(encode_columns(columns) | batch.arrays, self._level, self._where)
            self._check(columns)
            self._check_order(columns)
            self._batches.add(columns, batch.arrays.get(SEQUENCE))
        self._num_appended += self._batches.num_candidates

    def _commit_batches(
        self, ticket: CommitTicket, batches: UncommittedBatches, check: Callable[[], None] = noop
    ) -> None:
        """Commit batches as the next shard, while the next ticket begins."""
        before, index, dtype = self._batches, self._num_shards, self._score_dtype
        self._batches, self._num_shards = UncommittedBatches(), index + 1
        try:
            with self._explaining_failures(shard_name(index), ticket):
                make_folder(self._partial)
                ticket.let_next_begin()
                self._commit(ticket, index, batches, check)
        except BaseException:
            ticket.wait_for_others()
            if self._queue.is_last(ticket):
                self._batches, self._num_shards, self._score_dtype = before, index, dtype
            else:
                # A later batch would leave a gap.
                self._is_closed = True
            raise

    def _commit(
        self,
        ticket: CommitTicket,
        index: int,
        batches: UncommittedBatches,
        check: Callable[[], None] = noop,
        *,
        is_complete: bool = False,
    ) -> None:
        """Write a shard: the file, then its name, then the manifest that lists it."""

        def wait() -> None:
            ticket.wait_for_others()
            self._refuse_if_closed()

        arrays = self._encode(batches, self._rankings if is_complete else None)
        shard = write_shard(self._partial, index, arrays, self._creator, self._packing, check=check, before_naming=wait)
        shards = (*self._manifest.shards, shard)
        manifest = list_shards(shards, is_complete=is_complete, creator=self._creator, part=self._part)
        write_manifest(self._partial, manifest)
        self._manifest = manifest
        self._num_safe = self._num_appended = manifest.num_candidates
        self._journal.end()

    def _encode(self, batches: UncommittedBatches, rankings: Rankings | None) -> ArrayParts:
        """Encode the datasets of a file in parts; a file without candidates has the columns of the others."""
        empty = empty_columns(np.float64 if self._score_dtype is None else self._score_dtype.type)
        whole = self._whole if rankings is None else self._whole | encode_level("rankings", rankings)
        columns = batches.encode(self._absent, empty)
        kept = {name: parts for name, parts in columns.items() if is_kept(name, self._level)}
        return {name: [array] for name, array in whole.items()} | kept


def write_trace(
    path: Path | str,
    header: Header,
    symbols: Symbols,
    columns: Columns,
    rankings: Rankings | None = None,
    *,
    clauses: Clauses = NO_CLAUSES,
    storage: Storage = Storage(),
    unknown: Unknown = NOTHING_UNKNOWN,
) -> None:
    """Write a whole trace as one file, at once; `storage` cannot ask for shards. UserError for what cannot be written."""
    whole = Storage(storage.level, storage.absent, storage.is_archived, _WHOLE, _WHOLE)
    with TraceWriter(
        path,
        header,
        symbols,
        clauses=clauses,
        storage=whole,
        durability=Durability(has_journal=False),
        unknown=unknown,
    ) as writer:
        writer.append(columns)
        if rankings is not None:
            writer.set_rankings(rankings)


def write_again(trace: Trace, path: Path, *, is_archived: bool = False) -> None:
    """Write a trace at its own level, with all data that this version does not know. UserError as by `write_trace`."""
    level = parse_level(trace.header.level, trace.source)
    if has_goals(level):
        write_trace(
            path,
            msgspec.structs.replace(trace.header, schema_version=SCHEMA_VERSION),
            trace.symbols,
            trace.columns,
            trace.rankings,
            clauses=Clauses(trace.facts, trace.fact_lines, trace.rules),
            storage=Storage(absent=OPTIONAL_COLUMNS - trace.fields, is_archived=is_archived),
            unknown=trace.unknown,
        )
        return
    creator = trace.header.creator or f"kgverify {__version__}"
    packing = packing_of(level, is_archived=is_archived)
    with lock_trace(path), new_trace(path) as temporary:
        write_arrays(temporary, encode_trace(trace), creator, packing)
