"""Writing a trace: one file if it is small, else shards that are safe on disk once committed."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from kgverify import __version__
from kgverify.errors import UserError
from kgverify.logic.program import Rule, Symbols
from kgverify.trace.columns import Candidates, Columns, Rankings, empty_columns
from kgverify.trace.disk import make_folder
from kgverify.trace.hdf5 import read_arrays, write_arrays
from kgverify.trace.header import Header
from kgverify.trace.journal import JournalWriter, Start, journal_name, list_journals
from kgverify.trace.levels import TraceLevel, has_goals, is_kept, packing_of, parse_level
from kgverify.trace.manifest import (
    MANIFEST,
    Manifest,
    Part,
    Shard,
    check_shard,
    list_shards,
    put_in_place,
    read_manifest,
    shard_name,
    write_at_once,
    write_manifest,
)
from kgverify.trace.pending import Pending, encode_batch, join_candidates, open_journal, sequence_of
from kgverify.trace.place import (
    check_no_partial,
    check_place,
    check_resumable,
    check_same_run,
    describe_safe,
    remove_left_over,
    remove_partial,
)
from kgverify.trace.reader import check_sequence, partial_of
from kgverify.trace.repeated import check_writable, encode_repeated
from kgverify.trace.schema import (
    OPTIONAL_COLUMNS,
    SEQUENCE,
    decode_columns,
    encode_columns,
    encode_level,
)
from kgverify.trace.shards import write_shard
from kgverify.trace.stage_items import check_told
from kgverify.trace.trace import NOTHING_UNKNOWN, Unknown
from kgverify.trace.validate import check_columns, check_facts, check_rankings, check_types

_WHOLE: Final = 1 << 62
"""Steps or bytes of a shard where no shard is wanted."""


class TraceWriter:
    """A context manager that writes a trace at `path`, where nothing appears before the trace is complete.

    facts:           int32 [F, 3]  the program's facts; optional
    fact_lines:      int32 [F]     their lines; optional
    shard_steps:     steps held in memory before they are committed as a shard in `<path>.partial`
    shard_bytes:     bytes of columns held in memory before the same; no more than these and one batch are ever held
    absent:          columns that the prover does not know, named as in `Trace.fields`; not written
    level:           a `TraceLevel`: which columns are kept; None for that of the header
    is_archived:     packed as small as HDF5's own filters can
    rules:           the program's rules, for goals to be rebuilt where the level leaves them out; optional
    unknown:         what a trace that is written again held beyond this schema
    resume:          go on with a `<path>.partial` left behind: skip the first `num_appended` candidates
    part:            this is one writer of several, each with a path of its own; `unite` makes one trace of theirs
    journal_seconds: what `append` took in survives the end of the process at any moment, in a journal; a crash of the
                     machine loses at most what was appended in so many seconds, or
    journal_bytes:   in so many bytes and one batch. 0 seconds force each batch to disk
    has_journal:     False keeps no journal: what is not in a shard yet is lost with the process

    An error inside the context leaves in `<path>.partial` what was appended. UserError for what cannot be written,
    which then says what is safe, and for a `<path>.partial` that is there without `resume`, or belongs to another run.
    """

    def __init__(
        self,
        path: Path | str,
        header: Header,
        symbols: Symbols,
        *,
        facts: NDArray[np.int32] | None = None,
        fact_lines: NDArray[np.int32] | None = None,
        shard_steps: int = 1_000_000,
        shard_bytes: int = 1 << 30,
        absent: Iterable[str] = (),
        level: str | None = None,
        is_archived: bool = False,
        rules: Sequence[Rule] | None = None,
        unknown: Unknown = NOTHING_UNKNOWN,
        resume: bool = False,
        part: Part | None = None,
        journal_seconds: float = 5.0,
        journal_bytes: int = 64 << 20,
        has_journal: bool = True,
    ) -> None:
        self._path, self._where = Path(path), str(path)
        self._partial = partial_of(self._path)
        self._symbols, self._unknown = symbols, unknown
        self._creator = header.creator or f"kgverify {__version__}"
        self._shard_steps, self._shard_bytes = shard_steps, shard_bytes
        self._part, self._has_journal = part, has_journal
        self._journal_seconds, self._journal_bytes = journal_seconds, journal_bytes
        self._absent = frozenset(absent)
        self._level = parse_level(level or header.level, self._where)
        self._is_archived = is_archived
        self._packing = packing_of(self._level, is_archived=is_archived)
        check_writable(header, self._absent, self._where)
        if facts is not None and fact_lines is not None and not len(fact_lines):
            fact_lines = None
        check_facts(facts, fact_lines, symbols, self._where)
        self._num_rules = len(header.clauses.rules) or None
        self._num_facts = None if facts is None else len(facts)
        self._shared = encode_repeated(
            header, self._level, self._absent, symbols, facts, fact_lines, rules, unknown, self._where
        )
        self._pending = Pending()
        self._rankings: Rankings | None = None
        self._score_dtype: np.dtype[np.floating] | None = None
        self._is_closed = False
        self._journal: JournalWriter | None = None
        self._num_unsaved = 0  # of what is pending: being committed without having been journalled
        check_place(self._path)
        self._committed = [empty_columns().candidates]
        if resume:
            self._manifest = self._resume()
        else:
            if shard_steps < _WHOLE:
                check_no_partial(self._partial)
            self._manifest = self._list(())
        self._num_safe = self.num_appended

    @property
    def level(self) -> TraceLevel:
        """Which columns are kept."""
        return self._level

    @property
    def num_committed(self) -> int:
        """Candidates that are safe on disk whatever happens, from the first on."""
        return self._num_safe

    @property
    def num_appended(self) -> int:
        """Candidates in shards and in the journal, from the first on: the end of the process loses none of them."""
        return self._manifest.num_candidates + self._pending.num_candidates - self._num_unsaved

    def append(self, columns: Columns, sequence: NDArray[np.uint64] | None = None) -> None:
        """Add candidates with all their steps, in any order; the arrays may not change before the next `commit`.

        A batch that fills a shard is committed at once instead of being journalled first.

        sequence: uint64 [T], the digests of these steps, where they were computed elsewhere: a reader compares them with
                  the columns. With them, atoms that the level leaves out need not be given
        """
        if self._is_closed:
            raise ValueError("the writer is closed")
        num_candidates, num_steps = len(columns.candidates.query), len(columns.steps.depth)
        if self._manifest.is_complete and num_candidates:
            raise UserError(
                "found further candidates, but all were committed before",
                where=str(self._partial),
                fix="skip the first `num_appended` candidates",
            )
        self._check(columns, sequence)
        if not num_candidates:
            return
        if sequence is None and not has_goals(self._level):
            sequence = sequence_of(columns, self._absent)  # of what is kept they cannot be computed
        if self._pending.exceeds(columns, self._shard_steps, self._shard_bytes):
            self._num_unsaved = num_candidates
            self._pending.add(columns, sequence)
            self.commit()
            return
        if self._has_journal:
            with self._telling_what_is_safe("the journal"):
                journal = self._journal or self._begin_journal()
                batch = encode_batch(columns, sequence, self._absent, self._level)
                if journal.append(batch, num_candidates, num_steps):
                    self._num_safe = self.num_appended + num_candidates
        self._pending.add(columns, sequence)

    def sync(self) -> None:
        """Force the journal to disk: what was appended is then safe whatever happens. Without a journal, `commit`."""
        if not self._has_journal:
            self.commit()
        elif self._journal is not None:
            with self._telling_what_is_safe("the journal"):
                self._journal.sync()
            self._num_safe = self.num_appended

    def commit(self) -> None:
        """Put what was appended so far safely on disk, as a shard; nothing if there is nothing."""
        if self._pending.num_candidates:
            with self._telling_what_is_safe(shard_name(len(self._manifest.shards))):
                self._commit(is_complete=False)

    def set_rankings(self, rankings: Rankings) -> None:
        """Give the rankings, before closing."""
        check_types(encode_level("rankings", rankings), self._where)
        check_rankings(rankings, self._where)
        self._rankings = rankings

    def committed_candidates(self) -> Candidates:
        """What a resumed recording has recorded before, as `num_appended` counts it."""
        return join_candidates([*self._committed, self._pending.candidates()])

    def close(self) -> None:
        """Write what is left and put the trace in its place; a second call does nothing."""
        if self._is_closed:
            return
        with self._telling_what_is_safe("the trace"):
            if not self._manifest.shards and self._part is None:
                arrays = self._encode(has_rankings=True)
                write_at_once(self._path, lambda path: write_arrays(path, arrays, self._creator, self._packing))
                self._end_journal()
                remove_partial(self._partial)
            else:
                if not self._manifest.is_complete:
                    self._commit(is_complete=True)
                remove_left_over(self._partial)
                put_in_place(self._partial, self._path)
        self._is_closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        elif self._journal is not None:
            self._journal.save()
            self._journal.close()
            self._is_closed = True

    @contextmanager
    def _telling_what_is_safe(self, what: str) -> Iterator[None]:
        """A failure to write becomes a UserError that says what is safe; the writer is closed then."""
        try:
            yield
        except OSError as error:
            is_saved = self._journal is not None and self._journal.save()
            num_safe = self.num_appended if is_saved else max(self._num_safe, self._manifest.num_candidates)
            self._is_closed = True
            if self._journal is not None:
                self._journal.close()
            raise UserError(
                f"{what} cannot be written: {error.strerror or error}; {describe_safe(num_safe, self._partial)}",
                where=self._where,
                fix="make room, or see to the permissions; then resume the recording"
                + (f", or keep what there is: kgverify trace repair {self._partial}" if num_safe else ""),
            ) from error

    def _check(self, columns: Columns, sequence: NDArray[np.uint64] | None) -> None:
        check_types(encode_columns(columns), self._where)
        check_columns(columns, self._symbols, self._where, num_rules=self._num_rules, num_facts=self._num_facts)
        check_told(columns, self._level, self._where)
        if sequence is not None:
            check_sequence(sequence, len(columns.steps.depth), self._where)
        dtype = columns.resolvents.score.dtype
        if self._score_dtype is not None and self._score_dtype != dtype:
            raise UserError(
                f"dtype is {dtype}, expected {self._score_dtype} as before",
                where=f"{self._where}:resolvents/score",
                fix="append scores of one type",
            )
        self._score_dtype = dtype

    def _begin_journal(self) -> JournalWriter:
        shard = len(self._manifest.shards)
        make_folder(self._partial)
        self._journal = journal = self._open_journal(shard)
        journal.begin(Start(shard, self._creator, tuple(sorted(self._absent)), self._is_archived), self._shared)
        return journal

    def _open_journal(self, shard: int) -> JournalWriter:
        path = self._partial / journal_name(shard)
        return JournalWriter(path, max_seconds=self._journal_seconds, max_bytes=self._journal_bytes)

    def _end_journal(self) -> None:
        """What was journalled is safe elsewhere."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None
        for path in list_journals(self._partial):
            path.unlink()

    def _list(self, shards: tuple[Shard, ...], *, is_complete: bool = False) -> Manifest:
        return list_shards(shards, is_complete=is_complete, creator=self._creator, part=self._part)

    def _resume(self) -> Manifest:
        if not self._partial.is_dir() or not any(self._partial.iterdir()):
            # Killed before anything was appended, or there is nothing to resume.
            return self._list(())
        has_manifest = (self._partial / MANIFEST).is_file() or bool(list_journals(self._partial))
        manifest = read_manifest(self._partial) if has_manifest else self._list(())
        check_resumable(manifest, self._part, self._partial)
        for shard in manifest.shards:
            check_shard(self._partial, shard)
            arrays = read_arrays(self._partial / shard.name)
            if shard.name == shard_name(0):
                check_same_run(arrays, self._shared, self._absent, self._level, self._partial / shard.name)
            columns = decode_columns(arrays)
            self._committed.append(columns.candidates)
            if "resolvents/score" in arrays:
                self._score_dtype = columns.resolvents.score.dtype
        if not manifest.is_complete:
            self._manifest = manifest
            self._resume_journal(len(manifest.shards))
        return manifest

    def _resume_journal(self, shard: int) -> None:
        """Take up what was appended since the last shard."""
        journal = open_journal(self._partial, shard)
        if journal is None or journal.start is None:
            return
        path = journal.path
        stated = {name.replace(".", "/"): np.zeros(0) for name in OPTIONAL_COLUMNS - {*journal.start.absent}}
        check_same_run(journal.shared | stated, self._shared, self._absent, self._level, path)
        if self._has_journal:
            self._journal = self._open_journal(shard)
            with self._telling_what_is_safe("the journal"):
                self._journal.go_on(journal)
        for batch in journal.batches:
            columns = decode_columns(batch.arrays)
            sequence = batch.arrays.get(SEQUENCE)
            self._check(columns, sequence)
            self._pending.add(columns, sequence)

    def _encode(self, *, has_rankings: bool) -> dict[str, list[NDArray[Any]]]:
        """What is pending, by path, in parts that need not be joined; digests included."""
        # A last shard may hold rankings alone; it has the columns of the others all the same.
        empty = empty_columns(np.float64 if self._score_dtype is None else self._score_dtype.type)
        whole = self._shared
        if has_rankings and self._rankings is not None:
            whole = whole | encode_level("rankings", self._rankings)
        pending = self._pending.encode(self._absent, empty)
        kept = {n: p for n, p in pending.items() if is_kept(n, self._level)}
        return {name: [array] for name, array in (whole | dict(self._unknown.arrays)).items()} | kept

    def _commit(self, *, is_complete: bool) -> None:
        """Write what is pending as the next shard: first the file, then the manifest that lists it."""
        index = len(self._manifest.shards)
        make_folder(self._partial)
        parts = self._encode(has_rankings=is_complete)
        shard = write_shard(self._partial, index, parts, self._creator, self._packing)
        manifest = self._list((*self._manifest.shards, shard), is_complete=is_complete)
        write_manifest(self._partial, manifest)
        self._manifest = manifest
        self._pending = Pending()
        self._num_unsaved = 0
        self._num_safe = manifest.num_candidates
        self._end_journal()


def write_trace(
    path: Path | str,
    header: Header,
    symbols: Symbols,
    columns: Columns,
    rankings: Rankings | None = None,
    *,
    facts: NDArray[np.int32] | None = None,
    fact_lines: NDArray[np.int32] | None = None,
    absent: Iterable[str] = (),
    level: str | None = None,
    is_archived: bool = False,
    rules: Sequence[Rule] | None = None,
    unknown: Unknown = NOTHING_UNKNOWN,
) -> None:
    """Write a whole trace as one file, at once. UserError for what cannot be written."""
    with TraceWriter(
        path,
        header,
        symbols,
        facts=facts,
        fact_lines=fact_lines,
        shard_steps=_WHOLE,
        shard_bytes=_WHOLE,
        has_journal=False,
        absent=absent,
        level=level,
        is_archived=is_archived,
        rules=rules,
        unknown=unknown,
    ) as writer:
        writer.append(columns)
        if rankings is not None:
            writer.set_rankings(rankings)
