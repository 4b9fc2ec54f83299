"""The writer of traces: one file if it is small, else shards that are safe on disk once committed."""

import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.errors import UserError
from kgverify.files.writing import make_folder, renamed_into
from kgverify.program.program import Rule, Symbols
from kgverify.trace.files.manifest import (
    MANIFEST,
    Manifest,
    Shard,
    check_no_partial,
    check_output_path,
    explain_failed_write,
    list_shards,
    lock_trace,
    new_trace,
    numbers_of,
    partial_of,
    put_in_place,
    read_manifest,
    remove_left_over,
    remove_partial,
    render_hash,
    shard_name,
    write_manifest,
)
from kgverify.trace.hdf5.writing import ArrayParts, write_arrays
from kgverify.trace.model.codec import encode_rules, encode_symbols, lower_arrays, uncounted
from kgverify.trace.model.columns import (
    KNOWLEDGE_GRAPH,
    LABELS,
    Candidates,
    Columns,
    Rankings,
    StepBatch,
    concatenate,
)
from kgverify.trace.model.digests import compute_sequence, root_digest
from kgverify.trace.model.header import (
    Header,
    check_header,
    check_version,
    differing_fields,
    encode_header,
    unknown_columns,
)
from kgverify.trace.model.schema import (
    SEQUENCE,
    Arrays,
    Packing,
    Schema,
    TraceLevel,
    encode_level,
    has_goals,
    packing_of,
    parse_level,
)
from kgverify.trace.model.trace import Trace
from kgverify.trace.model.validate import (
    check_appended,
    check_columns,
    check_facts,
    check_program,
    check_rankings,
    check_rules,
    check_types,
)
from kgverify.trace.read.trace_file import SHARED, TraceFile
from kgverify.version import __version__


def open_unfinished(
    partial: Path, shared: Arrays, held: frozenset[str], schema: Schema
) -> tuple[Manifest, TraceFile] | None:
    """Open the folder of an unfinished recording; None without one to resume. UserError if it is damaged or from another run.

    shared: the datasets that every shard of the run repeats
    held:   the optional columns that the run writes
    """
    if not (partial / MANIFEST).is_file() and len(list(partial.glob("shard-*.h5"))) < 2:
        # The process was killed before anything was committed, or there is nothing to resume.
        return None
    manifest = read_manifest(partial)
    if manifest.has_gaps:
        raise UserError(
            "candidates between those recorded were lost, so that it cannot be resumed",
            where=str(partial),
            fix="keep it under another name, and record again",
        )
    trace = TraceFile(partial, is_lazy=True, schema=schema)
    trace.verify()
    first = trace.files[0]
    _check_same_run(first.read_group(*SHARED), shared, first.path)
    stored = {each.name for each in schema.compared if each.path in first.stored}
    if odd := sorted((stored & schema.optional) ^ held):
        raise UserError(
            f"{odd[0]} is in the shards or in this run, not in both",
            where=str(first.path),
            fix=f"resume with the same columns, or delete {partial}",
        )
    return manifest, trace


def _check_same_run(found: Arrays, shared: Arrays, path: Path) -> None:
    """Raise a UserError unless the shared datasets `found` in a file are those of the run to resume."""
    for name in sorted(found.keys() | shared.keys()):
        own, expected = found.get(name), shared.get(name)
        is_same = own is not None and expected is not None and np.array_equal(own, expected)
        what = ""
        if name == "header" and own is not None and expected is not None:
            what = differing_fields(own.tobytes(), expected.tobytes())
            is_same = not what
        if not is_same:
            raise UserError(
                f"differs{what} from that of the run to be resumed",
                where=f"{path}:{name}",
                fix=f"resume with the same program, options and versions, or delete {path.parent}",
            )


_MAX_THREADS: Final = 4

_GROUP_STEPS: Final = 1 << 16
"""The number of steps below which batches are joined before their digests are computed."""


def encode_batches(batches: Sequence[StepBatch], absent: Collection[str], schema: Schema) -> list[Arrays]:
    """Return the columns and digests of batches by path, as consecutive parts."""

    def encode(group: StepBatch) -> Arrays:
        columns, sequence = group
        arrays = schema.encode(columns, absent)
        arrays[SEQUENCE] = compute_sequence(columns, absent, schema) if sequence is None else sequence
        return arrays

    # NumPy releases the interpreter lock while it computes.
    with ThreadPoolExecutor(min(os.cpu_count() or 1, _MAX_THREADS)) as pool:
        return list(pool.map(encode, _group(batches, schema)))


def _group(batches: Iterable[StepBatch], schema: Schema) -> Iterator[StepBatch]:
    group: list[Columns] = []
    num_steps = 0
    for columns, sequence in batches:
        num_here = schema.count_rows(columns)["steps"]
        if group and (sequence is not None or num_steps + num_here > _GROUP_STEPS):
            yield concatenate(group), None
            group, num_steps = [], 0
        if sequence is not None:
            yield columns, sequence
        else:
            group.append(columns)
            num_steps += num_here
    if group:
        yield concatenate(group), None


def write_shard(
    folder: Path,
    name: str,
    parts: ArrayParts,
    creator: str,
    packing: Packing = Packing.PLAIN,
    schema: Schema = KNOWLEDGE_GRAPH,
) -> Shard:
    """Write a shard under its name, force it to disk, and return its entry for the manifest.

    parts: its datasets, digests included
    """
    arrays = {**parts, "shard/index": [np.array(numbers_of(name), np.uint64)]}
    with (
        ThreadPoolExecutor(1) as pool,
        renamed_into(folder / name, is_durable=True) as temporary,
    ):
        root = pool.submit(_root_of, parts, schema)
        checksum = write_arrays(temporary, arrays, creator, packing, schema)
    return Shard(
        name=name,
        size=(folder / name).stat().st_size,
        num_candidates=sum(len(part) for part in parts["candidates/num_steps"]),
        num_steps=sum(len(part) for part in parts[SEQUENCE]),
        xxh3=render_hash(checksum),
        root=render_hash(root.result()),
    )


def _root_of(parts: ArrayParts, schema: Schema = KNOWLEDGE_GRAPH) -> int:
    # The optional columns are not needed for the root.
    kind = schema.groups["candidates"]
    columns: list[Any] = [parts.get(f"candidates/{name}", parts[SEQUENCE]) for name in kind._fields]
    roots = (
        root_digest(kind(*part), sequence, schema) for *part, sequence in zip(*columns, parts[SEQUENCE], strict=True)
    )
    return sum(roots) % (1 << 64)


@dataclass(frozen=True)
class Clauses:
    """The clauses of the program, as far as a trace stores them.

    facts:      int32 [F, 3]  the facts; resolvents name them by their index
    fact_lines: int32 [F]     their lines in the facts' file
    rules:      the rules, which resolvents name by their index
    """

    facts: NDArray[np.int32] | None = None
    fact_lines: NDArray[np.int32] | None = None
    rules: Sequence[Rule] | None = None


NO_CLAUSES: Final = Clauses()


def encode_shared(header: Header, symbols: Symbols, clauses: Clauses, where: str) -> Arrays:
    """Encode what every shard repeats: header, names and clauses. UserError for clauses or names that do not fit."""
    check_version(header.schema_version, f"{where}:header")
    check_header(header)
    try:
        content = msgspec.json.encode(encode_header(header))
    except UnicodeEncodeError as error:
        raise UserError(
            "holds text that UTF-8 cannot encode",
            where=f"{where}:header",
            fix="decode the input files as UTF-8",
        ) from error
    arrays: Arrays = {"header": np.frombuffer(content, np.uint8)} | encode_symbols(symbols, where)
    facts, lines = clauses.facts, clauses.fact_lines
    if facts is not None and lines is not None and not len(lines):
        lines = None
    check_facts(facts, lines, symbols, where)
    if facts is not None:
        arrays["program/facts"] = facts
    if lines is not None:
        arrays["program/fact_lines"] = lines
    if clauses.rules is not None:
        arrays |= encode_rules(clauses.rules)
    check_rules(arrays, symbols, where)
    check_program(arrays, symbols, header.program_sha256, where)
    return arrays


def encode_trace(trace: Trace) -> Arrays:
    """Encode every dataset of a trace at its level, with its digests as they are: they cannot be computed without goals."""
    level = parse_level(trace.header.level, trace.source)
    clauses = Clauses(trace.facts, trace.fact_lines, trace.rules)
    arrays = encode_shared(trace.header, trace.symbols, clauses, trace.source)
    columns = trace.schema.encode(trace.columns, trace.schema.optional - trace.fields)
    arrays |= {path: column for path, column in columns.items() if trace.schema.is_kept(path, level)}
    arrays[SEQUENCE] = trace.digests.sequence
    if trace.rankings is not None:
        arrays |= encode_level("rankings", trace.rankings)
    if trace.labels is not None:
        arrays[LABELS] = trace.labels
    return lower_arrays(arrays, level, trace.schema)


_MOST_PIECES: Final = 256
"""The number of pieces of one shard above which the next commit joins them, so that the manifest stays short."""


@dataclass(frozen=True)
class Storage:
    """The options for what a trace stores, in which files, and how much may be lost if the process is killed.

    level:       a `TraceLevel`: the columns to keep; None for the level of the header
    absent:      columns that the prover does not know, named as in `Trace.fields`, and that are not written. Columns in
                 `EngineInfo.unknown` need not be repeated
    is_archived: pack datasets as tightly as HDF5's own filters can
    shard_steps: steps held in memory before they are written as a shard in `<path>.partial`
    shard_bytes: likewise, bytes of columns held in memory; at most this and one batch are held
    commit_seconds: time after a commit when `append` commits again what is in memory, as a piece of the next shard. If the
                 process or the machine is killed, only what was appended since the last commit is lost
    """

    level: str | None = None
    absent: frozenset[str] = frozenset()
    is_archived: bool = False
    shard_steps: int = 1_000_000
    shard_bytes: int = 1 << 30
    commit_seconds: float = 5.0


class TraceWriter:
    """A context manager that writes a trace at `path`, where nothing appears before the trace is complete.

    clauses: the facts and rules of the program; optional
    storage: what to store, when to start another shard, and when to commit
    resume:  resume the recording in `<path>.partial`, if there is one: skip the first `num_appended` candidates
    overwrites: replace an existing trace at `path`
    schema:  the schema of the columns

    Each recording gets a random id in its header. If the header has an id already, this is a copy of that recording.
    After an error inside the context, the appended candidates stay in `<path>.partial`. UserError if a write fails, with
    the number of candidates that are safe; if `<path>.partial` exists without `resume`, or belongs to another run; and
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
        resume: bool = False,
        overwrites: bool = True,
        schema: Schema = KNOWLEDGE_GRAPH,
    ) -> None:
        self._schema = schema
        self._path, self._where = Path(path), str(path)
        self._partial = partial_of(self._path)
        self._creator = header.creator or f"kgverify {__version__}"
        self._storage = storage
        self._absent = frozenset(storage.absent) | (schema.optional & unknown_columns(header.engine, header.limits))
        self._level = parse_level(storage.level or header.level, self._where)
        self._packing = packing_of(self._level, is_archived=storage.is_archived)
        if odd := sorted(self._absent - schema.optional):
            raise UserError(
                f"{odd[0]} may not be absent, only {', '.join(sorted(schema.optional))}",
                where=self._where,
                fix="write the column",
            )
        absent = uncounted(self._level, self._absent | set(header.absent))
        header = msgspec.structs.replace(
            header, recording=header.recording or token_hex(8), level=self._level.value, absent=tuple(absent)
        )
        shared = encode_shared(header, symbols, clauses, self._where)
        self._whole = {path: array for path, array in shared.items() if schema.is_kept(path, self._level)}
        num_facts = None if clauses.facts is None else len(clauses.facts)
        num_rules = len(header.clauses.rules) or None
        self._check = partial(check_columns, where=self._where, num_rules=num_rules, num_facts=num_facts, schema=schema)
        self._rankings: Rankings | None = None
        self._dtypes: dict[str, np.dtype[Any]] = {}
        self._is_closed = False
        self._manifest: Manifest = list_shards((), is_complete=False, creator=self._creator)
        self._encoded: list[Arrays] = []  # columns that are in pieces already
        self._waiting: list[StepBatch] = []
        self._labels: list[NDArray[np.uint8]] = []
        self._has_labels = False
        left_out = {path.replace("/", ".") for path in schema.left_out(self._level)}
        self._held = schema.optional - left_out - self._absent
        self._begin_shard()
        self._resumed: Candidates = schema.empty().candidates
        self._lock = lock_trace(self._path, overwrites=overwrites)
        try:
            check_output_path(self._path)
            if resume:
                self._resume()
            else:
                check_no_partial(self._partial)
        except BaseException:
            self._lock.release()
            raise
        self._committed_at = time.monotonic()

    @property
    def level(self) -> TraceLevel:
        """The level of the trace."""
        return self._level

    @property
    def num_committed(self) -> int:
        """The number of candidates on disk, counted from the first: neither a kill nor a crash of the machine loses them."""
        return self._manifest.num_candidates

    @property
    def num_appended(self) -> int:
        """The number of candidates appended so far, counted from the first."""
        return self.num_committed + sum(len(columns.candidates.num_steps) for columns, _ in self._waiting)

    def append(
        self,
        columns: Columns,
        sequence: NDArray[np.uint64] | None = None,
        *,
        is_true: NDArray[np.uint8] | None = None,
    ) -> None:
        """Add candidates with all their steps, in any order; the arrays must not change before the trace is closed.

        `append_parts` prepares several batches at a time.

        sequence: uint64 [T], the digests of these steps, if they were computed elsewhere: a reader compares them with
                  the columns. If they are passed, atoms that the level leaves out are not needed
        is_true:  uint8 [N], 1 for the true triple of its query and side; in every batch or in none
        """
        self._add(self._prepare(columns, sequence), is_true)

    def append_parts(self, parts: Iterable[Callable[[], StepBatch]], num_threads: int = 1) -> Iterator[Candidates]:
        """Append each part in order while the next one is made; yield its candidates once it is appended.

        parts:       functions that read a part, each called in its own thread
        num_threads: the number of parts that are read and checked at the same time. This number of parts and one shard
                     are in memory, besides the part being made

        The trace is the same for any `num_threads`. After an error in one part, the parts before it are stored, later
        parts are not, and the writer is closed.
        """

        def add(prepared: Future[StepBatch]) -> Candidates:
            try:
                self._add(prepared.result())
            except BaseException:
                self._keep()
                raise
            return prepared.result()[0].candidates

        with ThreadPoolExecutor(num_threads) as readers, ThreadPoolExecutor(1) as writer:
            waiting: deque[Future[Candidates]] = deque()
            for read in parts:
                if len(waiting) == num_threads:
                    yield waiting.popleft().result()
                prepared = readers.submit(lambda read=read: self._prepare(*read()))  # type: ignore[misc]  # one by one
                waiting.append(writer.submit(add, prepared))
            while waiting:
                yield waiting.popleft().result()

    def commit(self) -> None:
        """Write everything that was appended so far to disk before returning."""
        if not self._waiting:
            return
        new = self._encode_waiting()
        kept, number = self._manifest.shards, (self._num_full, 0)
        if len(kept) > self._num_full:
            number = self._num_full, numbers_of(kept[-1].name)[1] + 1
        if len(kept) - self._num_full >= _MOST_PIECES:
            kept = kept[: self._num_full]
        self._write([*self._encoded, *new] if len(kept) == self._num_full else new, kept, shard_name(*number))
        self._encoded += new
        self._waiting, self._labels = [], []

    def set_rankings(self, rankings: Rankings) -> None:
        """Set the rankings, before closing."""
        check_types(encode_level("rankings", rankings), self._where)
        check_rankings(rankings, self._where)
        self._rankings = rankings

    def committed_candidates(self) -> Candidates:
        """Return the candidates that a resumed recording already has."""
        return self._resumed

    def close(self) -> None:
        """Write the rest and move the trace to its path; a second call does nothing."""
        with self._lock:
            if not self._is_closed:
                with self._explaining_failures("the trace"):
                    self._finish()
            self._is_closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        with self._lock:
            if kind is None:
                self.close()
            elif not self._is_closed:
                self._keep()

    def _keep(self) -> None:
        """Commit everything appended so far, if possible, and close."""
        if not self._is_closed:
            with suppress(UserError):
                self.commit()
        self._is_closed = True

    def _finish(self) -> None:
        if self._num_full or self._manifest.is_complete:
            if not self._manifest.is_complete:
                self._flush(is_complete=True)
            remove_left_over(self._partial, self._manifest)
            put_in_place(self._partial, self._path)
            return
        arrays = self._merge([*self._encoded, *self._encode_waiting()], has_rankings=True)
        with new_trace(self._path) as path:
            write_arrays(path, arrays, self._creator, self._packing, self._schema)
        remove_partial(self._partial)

    @contextmanager
    def _explaining_failures(self, what: str) -> Iterator[None]:
        """Close the writer if a write fails, and raise a UserError with the number of candidates that are safe."""
        try:
            yield
        except OSError as error:
            self._is_closed = True
            self._lock.release()
            raise explain_failed_write(what, error, self.num_committed, self._partial, self._where) from error

    def _prepare(self, columns: Columns, sequence: NDArray[np.uint64] | None) -> StepBatch:
        """Check a batch; return it, with its digests if they cannot be computed from the columns that the level keeps."""
        arrays = self._schema.encode(columns) | ({} if sequence is None else {SEQUENCE: sequence})
        check_appended(arrays, self._level, self._where, self._schema)
        self._check(columns)
        if sequence is None and not has_goals(self._level):
            sequence = compute_sequence(columns, self._absent, self._schema)
        return columns, sequence

    def _encode(self, batches: Sequence[StepBatch]) -> list[Arrays]:
        return encode_batches(batches, self._absent, self._schema)

    def _encode_waiting(self) -> list[Arrays]:
        groups = self._encode(self._waiting)
        if self._labels:
            labels = np.concatenate(self._labels)
            num = sum(len(columns.candidates.num_steps) for columns, _ in self._waiting)
            if len(labels) != num:
                raise UserError(
                    f"has {len(labels)} values for {num} candidates",
                    where=f"{self._where}:{LABELS}",
                    fix="give one for each candidate of every batch",
                )
            groups[0][LABELS] = labels
        return groups

    def _add(self, batch: StepBatch, is_true: NDArray[np.uint8] | None = None) -> None:
        """Add a batch; write a shard when it is full, or a piece of it when it is time to commit."""
        columns, _ = batch
        self._check_order(columns)
        if not len(columns.candidates.num_steps):
            return
        self._waiting.append(batch)
        if is_true is not None:
            self._labels.append(is_true)
            self._has_labels = True
        self._num_steps += self._schema.count_rows(columns)["steps"]
        self._num_bytes += sum(column.nbytes for level in columns for column in level)
        if self._num_steps > self._storage.shard_steps or self._num_bytes > self._storage.shard_bytes:
            self._flush()
        elif time.monotonic() - self._committed_at >= self._storage.commit_seconds:
            self.commit()

    def _check_order(self, columns: Columns) -> None:
        """Raise a UserError for columns that cannot follow the columns appended before."""
        if self._is_closed:
            raise ValueError("the writer is closed")
        if self._manifest.is_complete and len(columns.candidates.num_steps):
            raise UserError(
                "found further candidates, but all were committed before",
                where=str(self._partial),
                fix="skip the first `num_appended` candidates",
            )
        for path in self._schema.mixed:
            dtype = self._schema.values(columns, path).dtype
            if dtype != self._dtypes.setdefault(path, dtype):
                raise UserError(
                    f"dtype is {dtype}, expected {self._dtypes[path]} as before",
                    where=f"{self._where}:{path}",
                    fix="append values of one type",
                )

    def _resume(self) -> None:
        found = open_unfinished(self._partial, self._whole, self._held, self._schema)
        if found is None:
            return
        self._manifest, trace = found
        first = trace.files[0]
        self._dtypes = {path: first.dtype(path) for path in self._schema.mixed if path in first.stored}
        self._resumed, self._whole["header"] = trace.candidate_columns(), first.small("header")
        pieces = [len(numbers_of(shard.name)) > 1 for shard in self._manifest.shards]
        self._num_full = pieces.count(False)
        for file in compress(trace.files, pieces):
            arrays = file.load_arrays()
            columns = self._schema.decode(arrays)
            self._encoded.append(self._schema.encode(columns, self._absent) | {SEQUENCE: arrays[SEQUENCE]})
            if (labels := file.read_labels()) is not None:
                self._encoded[-1][LABELS] = labels
            self._num_steps += file.num_steps
            self._num_bytes += sum(array.nbytes for array in self._encoded[-1].values())

    def _begin_shard(self) -> None:
        self._num_full = len(self._manifest.shards)
        self._encoded, self._waiting, self._labels = [], [], []
        self._num_steps = self._num_bytes = 0

    def _flush(self, *, is_complete: bool = False) -> None:
        """Write everything in memory as a shard, which replaces its pieces."""
        groups = [*self._encoded, *self._encode_waiting()]
        kept = self._manifest.shards[: self._num_full]
        number = numbers_of(kept[-1].name)[0] + 1 if kept else 0
        self._write(groups, kept, shard_name(number), is_complete=is_complete)
        self._begin_shard()

    def _write(self, groups: list[Arrays], kept: tuple[Shard, ...], name: str, *, is_complete: bool = False) -> None:
        """Commit a file after the shards that are kept: write the file, then its name, then the manifest that lists it."""
        with self._explaining_failures(name):
            make_folder(self._partial)
            is_piece = len(numbers_of(name)) > 1
            arrays = self._merge(groups, has_rankings=is_complete, has_names=not (kept and is_piece))
            shard = write_shard(self._partial, name, arrays, self._creator, self._packing, self._schema)
            manifest = list_shards((*kept, shard), is_complete=is_complete, creator=self._creator)
            write_manifest(self._partial, manifest)
            for old in self._manifest.shards[len(kept) :]:
                (self._partial / old.name).unlink(missing_ok=True)
        self._manifest = manifest
        self._committed_at = time.monotonic()

    def _merge(self, groups: list[Arrays], *, has_rankings: bool, has_names: bool = True) -> ArrayParts:
        """Return the datasets of a file; a file without candidates has the same columns, all empty.

        has_names: False for a piece that is not the first file: only the first has the names and the program
        """
        whole = self._whole if has_names else {"header": self._whole["header"]}
        if has_rankings and self._rankings is not None:
            whole = whole | encode_level("rankings", self._rankings)
        if not groups:
            groups = self._encode([(self._schema.empty(self._dtypes), None)])
            groups[0] |= {LABELS: np.zeros(0, np.uint8)} if self._has_labels else {}
        kept = [name for name in groups[0] if self._schema.is_kept(name, self._level)]
        return {name: [array] for name, array in whole.items()} | {
            n: [group[n] for group in groups if n in group] for n in kept
        }


_MOST_AT_ONCE: Final = 1 << 18
"""The maximum number of steps in one write, and in one file, when a trace is written again."""


def write_again(trace: Trace, path: Path, *, is_archived: bool = False) -> None:
    """Write a trace at its own level: as one file, or block by block as a folder of shards if it is large and has goals.

    Digests are recomputed if the level keeps the goals. UserError for data that cannot be stored, OSError if the write fails.
    """
    where = str(path)
    level = parse_level(trace.header.level, where)
    if has_goals(level) and len(trace.digests.sequence) > _MOST_AT_ONCE:
        _write_in_blocks(trace, path, Storage(None, trace.schema.optional - trace.fields, is_archived, _MOST_AT_ONCE))
        return
    rankings = {} if trace.rankings is None else encode_level("rankings", trace.rankings)
    schema = trace.schema
    check_appended(schema.encode(trace.columns) | rankings, level, where, schema)
    num_facts = None if trace.facts is None else len(trace.facts)
    num_rules = len(trace.header.clauses.rules) or None
    check_columns(trace.columns, where, num_rules=num_rules, num_facts=num_facts, schema=schema)
    if trace.rankings is not None:
        check_rankings(trace.rankings, where)
    sequence = trace.digests.sequence
    if has_goals(level):
        sequence = compute_sequence(trace.columns, schema.optional - trace.fields, schema)
    arrays = encode_trace(replace(trace, digests=trace.digests._replace(sequence=sequence), source=where))
    creator = trace.header.creator or f"kgverify {__version__}"
    with lock_trace(path):
        check_output_path(path)
        with new_trace(path) as temporary:
            write_arrays(temporary, arrays, creator, packing_of(level, is_archived=is_archived), schema)


def _write_in_blocks(trace: Trace, path: Path, storage: Storage) -> None:
    """Write a trace as shards; its pages that are mapped from a file are released."""
    clauses = Clauses(trace.facts, trace.fact_lines, trace.rules)
    with TraceWriter(
        path, trace.header, trace.symbols, clauses=clauses, storage=storage, schema=trace.schema
    ) as writer:
        for begin, end in trace.reader.split():
            is_true = None if trace.labels is None else trace.labels[begin:end]
            writer.append(trace.reader.read_candidates(begin, end), is_true=is_true)
            trace.release()
        if trace.rankings is not None:
            writer.set_rankings(trace.rankings)
    trace.release()
