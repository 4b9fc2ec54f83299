"""A trace in memory: header, names, columns and digests."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kgverify.escaping import make_visible
from kgverify.program.program import Rule, Symbols
from kgverify.trace.model.column_reader import MemoryReader, release_pages
from kgverify.trace.model.columns import KNOWLEDGE_GRAPH, Columns, Digests, Rankings
from kgverify.trace.model.digests import root_digest
from kgverify.trace.model.header import Header
from kgverify.trace.model.schema import Schema


@dataclass(frozen=True, eq=False)
class Trace:
    """The recorded steps of an engine, in memory.

    digests:     as stored and verified, or computed if the file has none; at a level without goals, as stored, with zeros
                 for digests that are not stored
    rankings:    None if the file has none
    facts:       int32 [F, 3]  the program's facts; None if the file has none
    fact_lines:  int32 [F]     their lines in `header.clauses.facts_file`; None if the file has none
    fields:      the columns that the file held, such as `steps.choice`; any other column is zeros
    is_complete: False for a single shard and for a recording that did not finish
    source:      the path from which it was read
    rules:       the program's rules; None if the file has none
    labels:      uint8 [N]  1 for the true triple of its query and side; None if the file has none
    schema:      the schema of its columns
    """

    header: Header
    symbols: Symbols
    columns: Columns
    digests: Digests
    rankings: Rankings | None
    facts: NDArray[np.int32] | None
    fact_lines: NDArray[np.int32] | None
    fields: frozenset[str]
    is_complete: bool
    source: str
    rules: tuple[Rule, ...] | None = None
    labels: NDArray[np.uint8] | None = None
    schema: Schema = KNOWLEDGE_GRAPH

    def __repr__(self) -> str:
        """Return the path, the engine and the numbers of candidates and steps."""
        sizes = list(self.schema.count_rows(self.columns).values())[:2]
        return f"<Trace {describe_trace(self.source, self.header, *sizes)}>"

    @cached_property
    def reader(self) -> MemoryReader:
        """A reader of some of its candidates, with all their steps."""
        return MemoryReader(self.columns, self.schema, self.source)

    def release(self) -> None:
        """Let the system reclaim the pages of columns that are mapped from a file."""
        release_pages(each for level in (*self.columns, self.digests) for each in level)

    @cached_property
    def root(self) -> int:
        """The root digest of all steps."""
        return root_digest(self.columns.candidates, self.digests.sequence, self.schema)


def describe_trace(source: str, header: Header, num_candidates: int, num_steps: int) -> str:
    """Describe a trace in one line: its path, its engine, and its size."""
    return f"{make_visible(source)}: {make_visible(header.engine.name)}, {num_candidates:,} candidates, {num_steps:,} steps"
