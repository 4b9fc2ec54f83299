"""A trace as it was read: header, names, columns, digests, and which columns the file held."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.program.program import Rule, Symbols
from kgverify.trace.model.columns import Columns, Digests, Rankings
from kgverify.trace.model.digests import root_digest
from kgverify.trace.model.header import Header


class Unknown(NamedTuple):
    """What a file holds beyond this version of the schema: kept, so that it can be written again.

    arrays:  datasets by path
    header:  the fields of the header's JSON that this version does not know, nested as they were
    dropped: datasets and links that cannot be kept: not plain arrays, or too many
    """

    arrays: Mapping[str, NDArray[Any]]
    header: Mapping[str, Any]
    dropped: tuple[str, ...] = ()


NOTHING_UNKNOWN = Unknown({}, {})


@dataclass(frozen=True, eq=False)
class Trace:
    """What an engine did.

    digests:     as stored and verified, or computed where the file has none; at a level without goals as stored, and
                 those that are not stored are zeros
    rankings:    None where the file has none
    facts:       int32 [F, 3]  the program's facts; None where the file has none
    fact_lines:  int32 [F]     their lines in `header.clauses.facts_file`; None where the file has none
    fields:      the columns that the file held, such as `steps.choice`; any other column is zeros
    is_complete: False for a single shard and for a recording that did not finish
    source:      the path it was read from
    rules:       the program's rules; None where the file has none
    unknown:     what this version of the schema does not know
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
    unknown: Unknown = field(default=NOTHING_UNKNOWN)

    @cached_property
    def root(self) -> int:
        """The root digest of all steps."""
        return root_digest(self.columns.candidates, self.digests.sequence)
