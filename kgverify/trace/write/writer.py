"""Writing a trace: one file if it is small, else shards that are safe on disk once committed."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from kgverify import __version__
from kgverify.errors import UserError
from kgverify.program.program import Rule, Symbols
from kgverify.trace.files.disk import make_folder
from kgverify.trace.files.journal import Start
from kgverify.trace.files.manifest import Part, put_in_place, shard_name, write_at_once
from kgverify.trace.files.output_path import (
    cannot_write,
    check_no_partial,
    check_place,
    remove_left_over,
    remove_partial,
)
from kgverify.trace.files.shard_folder import JournalOfShards, ShardFolder
from kgverify.trace.hdf5.datasets import write_arrays
from kgverify.trace.model.columns import Candidates, Columns, Rankings, empty_columns
from kgverify.trace.model.header import Header
from kgverify.trace.model.levels import TraceLevel, has_goals, packing_of, parse_level
from kgverify.trace.model.schema import SEQUENCE, decode_columns, encode_columns, encode_level
from kgverify.trace.model.stage_items import check_told
from kgverify.trace.model.trace import NOTHING_UNKNOWN, Unknown
from kgverify.trace.model.validate import check_columns, check_facts, check_rankings, check_types
from kgverify.trace.read.reader import check_sequence, partial_of
from kgverify.trace.write.commit_queue import Turn, Turns
from kgverify.trace.write.resume import take_up
from kgverify.trace.write.shard import no_more
from kgverify.trace.write.shared_datasets import check_writable, encode_repeated
from kgverify.trace.write.uncommitted import Given, Pending, join_candidates, sequence_of

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
        self._part = part
        self._has_journal = has_journal
        self._absent = frozenset(absent)
        self._level = parse_level(level or header.level, self._where)
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
        self._turns = Turns()
        check_place(self._path)
        start = Start(0, self._creator, tuple(sorted(self._absent)), is_archived)
        self._folder = ShardFolder(self._partial, start, part, self._level, self._shared | dict(unknown.arrays))
        self._journal = JournalOfShards(
            self._partial, start, self._level, self._shared, max_seconds=journal_seconds, max_bytes=journal_bytes
        )
        self._committed = [empty_columns().candidates]
        self._num_appended = 0
        if resume:
            self._resume()
        elif shard_steps < _WHOLE:
            check_no_partial(self._partial)
        self._num_shards = len(self._folder.manifest.shards)  # with those that are being written
        self._num_safe = self._num_appended

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
        return self._num_appended

    def append(self, columns: Columns, sequence: NDArray[np.uint64] | None = None) -> None:
        """Add candidates with all their steps, in any order; the arrays may not change before the next `commit`.

        A batch that fills a shard is committed at once instead of being journalled first. `append_ahead` appends several
        at a time.

        sequence: uint64 [T], the digests of these steps, where they were computed elsewhere: a reader compares them with
                  the columns. With them, atoms that the level leaves out need not be given
        """
        with self._turns.take() as turn:
            self._append(turn, columns, sequence)

    def take_turn(self) -> Turn:
        """The next place in the order of appends, for `append_in_turn`, which must follow."""
        return self._turns.take()

    def append_in_turn(self, turn: Turn, read: Callable[[], Given]) -> Candidates:
        """`append` what a call gives, beside other threads that do so in their turns; its candidates.

        Each turn gets the place, and returns with the promise, that it would have if all were appended one after the other. An
        error closes the writer: what has a later turn is not taken in.
        """
        with turn:
            try:
                columns, sequence = read()
                self._append(turn, columns, sequence)
            except BaseException:
                turn.wait_for_others()
                self._is_closed = True
                raise
            return columns.candidates

    def sync(self) -> None:
        """Force the journal to disk: what was appended is then safe whatever happens. Without a journal, `commit`."""
        if not self._has_journal:
            self.commit()
            return
        with self._turns.take() as turn:
            turn.wait_for_others()
            with self._telling_what_is_safe("the journal", turn):
                if self._journal.sync():
                    self._num_safe = self._num_appended

    def commit(self) -> None:
        """Put what was appended so far safely on disk, as a shard; nothing if there is nothing."""
        with self._turns.take() as turn:
            turn.wait_for_others()
            if self._pending.num_candidates:
                self._commit_pending(turn, self._pending)

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
        with self._turns.take() as turn:
            turn.wait_for_others()
            if not self._is_closed:
                with self._telling_what_is_safe("the trace", turn):
                    self._finish(turn)
            self._is_closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        elif self._journal.is_open:
            self._journal.save()
            self._is_closed = True

    def _finish(self, turn: Turn) -> None:
        manifest = self._folder.manifest
        if manifest.shards or self._part is not None:
            if not manifest.is_complete:
                make_folder(self._partial)
                self._commit(turn, self._num_shards, self._pending, is_complete=True)
            remove_left_over(self._partial)
            put_in_place(self._partial, self._path)
            return
        arrays = self._folder.encode(self._pending, self._empty(), self._rankings)
        write_at_once(self._path, lambda path: write_arrays(path, arrays, self._creator, self._packing))
        self._journal.end()
        remove_partial(self._partial)

    @contextmanager
    def _telling_what_is_safe(self, what: str, turn: Turn) -> Iterator[None]:
        """A failure to write becomes a UserError that says what is safe; the writer is closed then."""
        try:
            yield
        except OSError as error:
            turn.wait_for_others()
            is_saved = self._journal.save()
            self._is_closed = True
            num_safe = self._num_appended if is_saved else max(self._num_safe, self._folder.manifest.num_candidates)
            raise cannot_write(what, error, num_safe, self._partial, self._where) from error

    def _append(self, turn: Turn, columns: Columns, sequence: NDArray[np.uint64] | None) -> None:
        self._refuse_if_closed()
        self._check_types(columns, sequence)
        num_candidates = len(columns.candidates.query)
        check: Callable[[], None] = partial(self._check, columns)
        if sequence is None:
            # Digests of what is wrong cannot be computed.
            check()
            check = no_more
            if not has_goals(self._level):
                sequence = sequence_of(columns, self._absent)  # of what is kept they cannot be computed
        turn.wait_to_begin()
        if num_candidates and self._pending.exceeds(columns, self._shard_steps, self._shard_bytes):
            self._check_place(columns)
            self._commit_pending(turn, self._pending.with_batch(columns, sequence), check)
            return
        turn.wait_for_others()
        check()
        self._check_place(columns)
        if not num_candidates:
            return
        if self._has_journal:
            with self._telling_what_is_safe("the journal", turn):
                if self._journal.append(self._num_shards, columns, sequence):
                    self._num_safe = self._num_appended + num_candidates
        self._pending.add(columns, sequence)
        self._num_appended += num_candidates

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise ValueError("the writer is closed")

    def _check_place(self, columns: Columns) -> None:
        """UserError for what cannot follow what was appended before."""
        self._refuse_if_closed()
        if self._folder.manifest.is_complete and len(columns.candidates.query):
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

    def _check_types(self, columns: Columns, sequence: NDArray[np.uint64] | None) -> None:
        check_types(encode_columns(columns), self._where)
        check_told(columns, self._level, self._where)
        if sequence is not None:
            check_sequence(sequence, len(columns.steps.depth), self._where)

    def _check(self, columns: Columns) -> None:
        check_columns(columns, self._symbols, self._where, num_rules=self._num_rules, num_facts=self._num_facts)

    def _resume(self) -> None:
        """Take up what a recording left behind."""
        nothing = self._folder.manifest
        found = take_up(self._partial, nothing, self._part, self._shared, self._absent, self._level)
        self._folder.manifest, self._score_dtype = found.manifest, found.score_dtype
        self._committed += found.candidates
        self._num_appended = found.manifest.num_candidates
        if found.journal is None:
            return
        if self._has_journal:
            with self._turns.take() as turn, self._telling_what_is_safe("the journal", turn):
                self._journal.go_on(len(found.manifest.shards), found.journal)
        for batch in found.journal.batches:
            columns = decode_columns(batch.arrays)
            sequence = batch.arrays.get(SEQUENCE)
            self._check_types(columns, sequence)
            self._check(columns)
            self._check_place(columns)
            self._pending.add(columns, sequence)
        self._num_appended += self._pending.num_candidates

    def _empty(self) -> Columns:
        """What a file without candidates holds; it has the columns of the others all the same."""
        return empty_columns(np.float64 if self._score_dtype is None else self._score_dtype.type)

    def _commit_pending(self, turn: Turn, pending: Pending, check: Callable[[], None] = no_more) -> None:
        """Commit batches as the next shard, while the next turn begins."""
        before, index, dtype = self._pending, self._num_shards, self._score_dtype
        self._pending, self._num_shards = Pending(), index + 1
        try:
            with self._telling_what_is_safe(shard_name(index), turn):
                make_folder(self._partial)
                turn.begin()
                self._commit(turn, index, pending, check)
        except BaseException:
            turn.wait_for_others()
            if turn.take_back():
                self._pending, self._num_shards, self._score_dtype = before, index, dtype
            else:
                # What began meanwhile would leave a gap.
                self._is_closed = True
            raise

    def _commit(
        self,
        turn: Turn,
        index: int,
        pending: Pending,
        check: Callable[[], None] = no_more,
        *,
        is_complete: bool = False,
    ) -> None:
        def wait() -> None:
            turn.wait_for_others()
            self._refuse_if_closed()

        parts = self._folder.encode(pending, self._empty(), self._rankings if is_complete else None)
        self._folder.add(index, parts, check, wait, is_complete=is_complete)
        self._num_safe = self._num_appended = self._folder.manifest.num_candidates
        self._journal.end()


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
