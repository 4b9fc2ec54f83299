"""The sources of a comparison: traces in memory and traces on disk, behind one interface.

`FileSource` and `equal_columns` are the only users of a trace on disk in this package.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.program.outcomes import Outcome
from kgverify.trace.model.columns import (
    COUNTS,
    Columns,
    Digests,
    Rankings,
    empty_columns,
    expand_rows,
    no_stage_items,
    select_candidates,
    select_steps,
    starts_of,
)
from kgverify.trace.model.header import NUM_STEPS, EngineInfo
from kgverify.trace.model.levels import TraceLevel, has_goals
from kgverify.trace.model.trace import Trace
from kgverify.trace.model.validate import check_codes
from kgverify.trace.read.data_file import DataFile, StoredDigests
from kgverify.trace.read.trace_file import TraceFile

Range = tuple[int, int]

VERIFIED_STEPS: Final = 1_000_000
"""Every value and digest of traces with at most this many steps is verified, which takes longer than to compare."""

LABELS: Final = "candidates/is_true"
"""An optional dataset: 1 where a candidate is the true triple of its query, else 0."""

_NO_DIGESTS: Final = Digests(*(np.zeros(0, np.uint64) for _ in Digests._fields))
_COLUMN_GROUPS: Final = ("candidates/", "steps/", "resolvents/", "digests/")


_OF_STEPS: Final = frozenset({NUM_STEPS, "candidates.is_limited"})


class MemorySource:
    """A trace in memory: one block. Its methods are those of `FileSource`."""

    faults: tuple[str, ...] = ()
    is_verified = True

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.header, self.fields, self.rankings = trace.header, trace.fields, trace.rankings
        self.num_candidates = len(trace.columns.candidates.query)
        self.num_steps = len(trace.columns.steps.depth)

    def shell(self, *, has_candidates: bool = False) -> Trace:
        """Return the whole trace."""
        return self.trace

    @property
    def labels(self) -> NDArray[Any] | None:
        """The labels of true triples, [N], 0 for other candidates; None if the trace has none."""
        return self.trace.unknown.arrays.get(LABELS)

    def split(self) -> Iterator[Range]:
        """Yield the range of all candidates."""
        yield 0, self.num_candidates

    def gather_column(self, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return rows of a column of the candidates, in any order."""
        column: NDArray[Any] = getattr(self.trace.columns.candidates, name)
        return column[rows]

    def read_rows(self, rows: NDArray[np.int64]) -> Columns:
        """Return candidates with all their steps, without the outputs of stages, which decide nothing."""
        columns = self.trace.columns._replace(stages=no_stage_items())
        return columns if self._is_all(rows) else select_candidates(columns, rows)

    def load(self, columns: Columns, rows: NDArray[np.int64]) -> Trace:
        """Return some candidates as a trace, with the outputs of stages."""
        if self._is_all(rows):
            return self.trace
        steps = expand_rows(starts_of(self.trace.columns.candidates.num_steps), rows)
        columns = columns._replace(stages=select_steps(self.trace.columns, steps).stages)
        return replace(self.trace, columns=columns, digests=Digests(*(words[steps] for words in self.trace.digests)))

    def stored_digests(self, rows: NDArray[np.int64]) -> StoredDigests:
        """Return nothing: digests in memory follow from the columns."""
        return {}

    def _is_all(self, rows: NDArray[np.int64]) -> bool:
        return len(rows) == self.num_candidates and _are_neighbours(rows)


class FileSource:
    """A trace that stays on disk, read block by block.

    header, fields: as in `Trace`
    faults:         shards that are missing or doubled, described
    is_verified:    whether every value and digest was verified
    """

    def __init__(self, trace: TraceFile) -> None:
        self.trace = trace
        self.header, self.fields, self.faults = trace.header, trace.fields, trace.faults
        self.num_candidates, self.num_steps = trace.num_candidates, trace.num_steps
        self.is_verified = False

    @property
    def rankings(self) -> Rankings | None:
        """The rankings, None if there are no rankings."""
        return self.trace.rankings

    @property
    def labels(self) -> NDArray[Any] | None:
        """The labels of true triples, [N], 0 for other candidates; None if the trace has none."""
        return self.trace.read_unknown(LABELS)

    @property
    def stored(self) -> frozenset[str]:
        """The paths of the columns that the files hold."""
        return frozenset(self.trace.files[0].stored)

    def shell(self, *, has_candidates: bool = False) -> Trace:
        """Return the trace without its steps, and without its candidates unless these are wanted."""
        columns = self.trace.files[0].read_steps(0, 0)
        if has_candidates:
            candidates = self.trace.candidate_columns()
            # A report cannot name a side that does not exist; the other codes are checked with the values.
            check_codes("candidates/side", candidates.side, self.trace.source)
            columns = columns._replace(candidates=candidates)
        return self.trace.with_columns(columns, _NO_DIGESTS, self.trace.rankings)

    def split(self) -> Iterator[Range]:
        """Yield ranges of candidates, each in one file."""
        return self.trace.split()

    def gather_column(self, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return rows of a column of the candidates, in any order."""
        return self.trace.gather_column(f"candidates/{name}", rows)

    def read_rows(self, rows: NDArray[np.int64]) -> Columns:
        """Return candidates with all their steps, as a view if they are neighbours."""
        if _are_neighbours(rows):
            return self.trace.read_candidates(int(rows[0]), int(rows[-1]) + 1)
        return self.trace.gather_candidates(rows)

    def load(self, columns: Columns, rows: NDArray[np.int64]) -> Trace:
        """Return some candidates as a trace, checked as `read_trace` checks. UserError if a value or digest is wrong."""
        where = self.trace.source
        if len(rows):
            where += f":candidates {int(rows.min())} to {int(rows.max())}"
        return self.trace.with_columns(columns, self.trace.check_block(columns, self.stored_digests(rows), where))

    def stored_digests(self, rows: NDArray[np.int64]) -> StoredDigests:
        """Return the digests of all steps of some candidates, as the files hold them."""
        # Runs of neighbours are one piece of a file.
        ends = np.flatnonzero(np.diff(rows, append=-2) != 1)
        begins = np.concatenate(([0], ends[:-1] + 1))
        pieces: list[StoredDigests] = []
        for begin, end in zip(rows[begins].tolist(), rows[ends].tolist(), strict=True) if len(rows) else ():
            pieces.extend(self.trace.read_digests(begin, end + 1))
        return {name: np.concatenate([piece[name] for piece in pieces]) for name in (pieces[0] if pieces else ())}

    def verify(self, *, content: bool) -> None:
        """Verify every value, or only the structure and what is read at once. UserError if the trace is damaged."""
        self.is_verified = content
        if content:
            self.trace.verify_content()
        else:
            self.trace.verify("header", "symbols/", "program/", "stages/", "rankings/", "shard/")

    def verify_rest(self, done: set[str]) -> None:
        """Verify the checksums of all columns but those already verified, and the sums of their counts."""
        if self.is_verified:
            return
        for file in self.trace.files:
            for name in file.stored:
                if name not in done and name.startswith(_COLUMN_GROUPS):
                    file.verify(name)
            file.release()
        for file in self.trace.files:
            check_counts(file)


StepSource = MemorySource | FileSource
"""A trace as a comparison reads it."""


def open_source(trace: Trace | TraceFile | Path | str) -> StepSource:
    """Return the source of a trace in memory, of an open trace, or of a path. UserError if the file is refused."""
    if isinstance(trace, Trace):
        return MemorySource(trace)
    return FileSource(trace if isinstance(trace, TraceFile) else TraceFile(trace, tolerates_shards=True))


def wants_content(sources: tuple[StepSource, StepSource], verifies_content: bool | None) -> list[bool]:
    """Return whether every value of each source is to be verified. None means: if it has few steps.

    The digests of a trace with goals are always verified if the other has none, since only they can be compared.
    """
    keeps = [has_goals(source.header.level) for source in sources]
    return [
        (source.num_steps <= VERIFIED_STEPS if verifies_content is None else verifies_content)
        or (own and not all(keeps))
        for source, own in zip(sources, keeps, strict=True)
    ]


def check_counts(file: DataFile) -> None:
    """UserError unless the counts of a file add up."""
    for name in COUNTS:
        if name in file.stored:
            file.offsets(name).build()
    file.release()


def _are_neighbours(rows: NDArray[np.int64]) -> bool:
    return bool(len(rows)) and int(rows[-1]) - int(rows[0]) == len(rows) - 1 and bool((np.diff(rows) == 1).all())


def has_steps(engine: EngineInfo) -> bool:
    """Return whether an engine shows its steps."""
    return NUM_STEPS not in engine.unknown


def drop_unknown_steps(sources: tuple[StepSource, StepSource]) -> tuple[StepSource, StepSource]:
    """Return both sides without steps if one of them does not show its steps, else as they are."""
    if all(has_steps(source.header.engine) for source in sources):
        return sources
    left, right = (
        _without_steps(source) if NUM_STEPS in source.fields or source.num_steps else source for source in sources
    )
    return left, right


def describe_unknown_steps(sources: tuple[StepSource, StepSource]) -> list[str]:
    """Return a note about what was compared, if one side does not show its steps."""
    hidden = dict.fromkeys(source.header.engine.name for source in sources if not has_steps(source.header.engine))
    if not hidden:
        return []
    return [
        f"the steps of {' and '.join(hidden)} are unknown: outcomes (PROVED or not), ranks and, where both sides have them,"
        " scores were compared, and any stage may be at fault"
    ]


def _without_steps(source: StepSource) -> MemorySource:
    trace = source.shell(has_candidates=True)
    every = trace.columns.candidates
    is_proved = every.outcome == Outcome.PROVED
    candidates = every._replace(
        num_steps=np.zeros_like(every.num_steps),
        outcome=np.where(is_proved, Outcome.PROVED, Outcome.FAILED).astype(np.int8),
        is_limited=np.zeros_like(every.is_limited),
    )
    return MemorySource(
        replace(
            trace,
            header=msgspec.structs.replace(trace.header, level=TraceLevel.STEPS.value),
            columns=empty_columns()._replace(candidates=candidates),
            digests=Digests(*(np.zeros(0, np.uint64) for _ in Digests._fields)),
            fields=frozenset(name for name in trace.fields if name.startswith("candidates.")) - _OF_STEPS,
        )
    )
