"""Reading candidates with their steps from columns that are too large to be copied: in a file, or mapped into memory."""

import mmap
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kgverify.trace.model.columns import KNOWLEDGE_GRAPH, Candidates, Columns, Range, expand_rows
from kgverify.trace.model.offsets import Offsets
from kgverify.trace.model.schema import Schema

BLOCK_STEPS: Final = 1 << 14
"""The number of steps that are read from a file at a time."""


class ColumnReader(ABC):
    """A reader of ranges and selections of candidates, with everything below them.

    schema:         the schema of the columns
    num_candidates: the number of candidates
    source:         the name of the columns in errors
    block_steps:    the number of steps of a block, unless it is a single candidate
    """

    schema: Schema
    num_candidates: int
    source: str
    block_steps: int = BLOCK_STEPS

    def __init__(self) -> None:
        self._offsets: dict[str, Offsets] = {}

    @property
    @abstractmethod
    def has_stages(self) -> bool:
        """True if there are outputs of the stages."""

    @abstractmethod
    def num_rows(self, level: str) -> int:
        """Return the number of rows of a level: a group, or a column that has a length of its own."""

    @abstractmethod
    def read(self, name: str, begin: int, end: int) -> NDArray[Any]:
        """Return rows of a column, as a view if possible."""

    @abstractmethod
    def take(self, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return rows of a column in any order."""

    def offsets(self, name: str) -> Offsets:
        """Return the offsets of the rows below, for a column of counts."""
        if name not in self._offsets:
            column = self.schema.column_of[name]
            self._offsets[name] = Offsets(
                lambda begin, end: self.read(name, begin, end),
                lambda rows: self.take(name, rows),
                self.num_rows(column.rows),
                self.num_rows(column.counts),
                f"{self.source}:{name}",
            )
        return self._offsets[name]

    def candidate_columns(self, begin: int, end: int) -> Candidates:
        """Return candidates without their steps."""
        kind: type[Candidates] = self.schema.groups["candidates"]
        return kind(*(self.read(f"candidates/{name}", begin, end) for name in kind._fields))

    def read_candidates(self, begin: int, end: int) -> Columns:
        """Return candidates with all their steps."""
        first = self.offsets("candidates/num_steps")
        steps = self.read_steps(first.at(begin), first.at(end))
        return steps._replace(candidates=self.candidate_columns(begin, end))

    def read_steps(self, begin: int, end: int) -> Columns:
        """Return steps with all their resolvents; no candidates."""

        def below(name: str, bounds: Range) -> Range:
            first = self.offsets(name)
            return first.at(bounds[0]), first.at(bounds[1])

        rows = self.schema.find_rows((begin, end), below, has_stages=self.has_stages) | {"candidates": (0, 0)}
        columns: Columns = self.schema.build(rows, lambda name, bounds: self.read(name, *bounds))
        return columns

    def gather_candidates(self, rows: NDArray[np.int64]) -> Columns:
        """Return candidates in any order, with all their steps."""

        def below(name: str, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
            # Below rows that follow each other, the rows follow each other as well.
            heads = np.flatnonzero(np.diff(chosen, prepend=-2) != 1)
            first = self.offsets(name).of(chosen[heads])
            lengths = np.add.reduceat(self.take(name, chosen), heads, dtype=np.int64)
            bounds = np.stack((first, first + lengths), axis=1).reshape(-1)
            return expand_rows(bounds, np.arange(0, len(bounds), 2))

        steps = below("candidates/num_steps", rows)
        found = self.schema.find_rows(steps, below, has_stages=self.has_stages)
        columns: Columns = self.schema.build(found | {"candidates": rows}, self.take)
        return columns

    def split(self) -> Iterator[Range]:
        """Yield ranges of candidates with at most `block_steps` steps, or of a single candidate."""
        first = self.offsets("candidates/num_steps")
        begin = 0
        while begin < self.num_candidates:
            end = min(begin + self.block_steps, self.num_candidates)
            if first.at(end) - first.at(begin) > self.block_steps:
                counts = self.read("candidates/num_steps", begin, end)
                sums = np.cumsum(counts, dtype=np.int64)
                end = begin + max(1, int(np.searchsorted(sums, self.block_steps, side="right")))
            yield begin, end
            begin = end


class MemoryReader(ColumnReader):
    """A reader of columns in memory, whose pages may be mapped from a file."""

    block_steps = 1 << 16

    def __init__(self, columns: Columns, schema: Schema = KNOWLEDGE_GRAPH, source: str = "") -> None:
        super().__init__()
        self.columns, self.schema, self.source = columns, schema, source
        self.num_candidates = self.num_rows("candidates")

    @property
    def has_stages(self) -> bool:
        """True if there are outputs of the stages."""
        return bool(self.schema.deep) and len(self.schema.values(self.columns, self.schema.deep[0])) > 0

    def num_rows(self, level: str) -> int:
        """Return the number of rows of a level: a group, or a column that has a length of its own."""
        if level in self.schema.column_of:
            return len(self.schema.values(self.columns, level))
        return self.schema.count_rows(self.columns)[level]

    def read(self, name: str, begin: int, end: int) -> NDArray[Any]:
        """Return rows of a column, as a view."""
        return self.schema.values(self.columns, name)[begin:end]

    def take(self, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return rows of a column in any order."""
        values = self.schema.values(self.columns, name)
        taken: NDArray[Any] = values[rows] if len(values) else values
        # A row maps the pages around it, up to megabytes.
        release_pages([values])
        return taken


def release_pages(arrays: Iterable[NDArray[Any]]) -> None:
    """Let the system reclaim the pages of arrays that are mapped from a file; they are read again when they are needed."""
    for array in arrays:
        owner: Any = array
        while isinstance(owner, np.ndarray):
            owner = owner.base
        owner = owner.obj if isinstance(owner, memoryview) else owner
        if isinstance(owner, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            owner.madvise(mmap.MADV_DONTNEED)
