"""A trace as it was read: header, names, columns, digests, and which columns the file held."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kgverify.logic.program import Symbols
from kgverify.trace.columns import Columns, Digests, Rankings
from kgverify.trace.digests import root_digest
from kgverify.trace.header import Header


@dataclass(frozen=True, eq=False)
class Trace:
    """What an engine did.

    digests:     as stored and verified, or computed where the file has none
    rankings:    None where the file has none
    facts:       int32 [F, 3]  the program's facts; None where the file has none
    fact_lines:  int32 [F]     their lines in `header.clauses.facts_file`; None where the file has none
    fields:      the columns that the file held, such as `steps.choice`; any other column is zeros
    is_complete: False for a single shard and for a recording that did not finish
    source:      the path it was read from
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

    @cached_property
    def root(self) -> int:
        """The root digest of all steps."""
        return root_digest(self.columns.candidates, self.digests.sequence)
