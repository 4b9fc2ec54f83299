"""The sources of a comparison: traces in memory and traces on disk, behind one interface.

Without a trace on disk, nothing that reads one is imported.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, Union

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.program.outcomes import Outcome
from kgverify.trace.model.columns import (
    LABELS,
    NO_DIGESTS,
    Columns,
    Digests,
    Range,
    are_neighbours,
    empty_columns,
    expand_rows,
    no_stage_items,
    select_candidates,
    select_steps,
    starts_of,
)
from kgverify.trace.model.digests import Words
from kgverify.trace.model.header import NUM_STEPS, EngineInfo
from kgverify.trace.model.levels import TraceLevel, has_goals
from kgverify.trace.model.trace import Trace

if TYPE_CHECKING:
    from kgverify.comparison.stored_columns import FileSource
    from kgverify.trace.read.trace_file import TraceFile

VERIFIED_STEPS: Final = 1_000_000
"""Every value and digest of traces with at most this many steps is verified, which takes longer than to compare."""

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

    def stored_digests(self, rows: NDArray[np.int64]) -> dict[str, Words]:
        """Return nothing: digests in memory follow from the columns."""
        return {}

    def _is_all(self, rows: NDArray[np.int64]) -> bool:
        return len(rows) == self.num_candidates and are_neighbours(rows)


StepSource: TypeAlias = Union[MemorySource, "FileSource"]
"""A trace as a comparison reads it."""
TraceLike: TypeAlias = Union[Trace, "TraceFile", Path, str]
"""A trace in memory, an open trace, or the path of one."""


def open_source(trace: TraceLike) -> StepSource:
    """Return the source of a trace in memory, of an open trace, or of a path. UserError if the file is refused."""
    if isinstance(trace, Trace):
        return MemorySource(trace)
    from kgverify.comparison.stored_columns import FileSource

    return FileSource(trace)


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
            digests=NO_DIGESTS,
            fields=frozenset(name for name in trace.fields if name.startswith("candidates.")) - _OF_STEPS,
        )
    )
