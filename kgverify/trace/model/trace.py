"""A trace in memory: header, names, columns, digests, and data that this version of the schema does not know."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.escaping import make_visible
from kgverify.program.program import Rule, Symbols
from kgverify.trace.model.columns import KNOWLEDGE_GRAPH, Columns, Digests, Rankings
from kgverify.trace.model.digests import root_digest
from kgverify.trace.model.header import Header
from kgverify.trace.model.schema import Schema


class Unknown(NamedTuple):
    """The content of a file that is not in this version of the schema, kept so that it can be written again.

    arrays:  datasets by path
    header:  the fields of the header's JSON that this version does not know, nested as they were
    dropped: datasets and links that cannot be kept: not plain arrays, or too many
    """

    arrays: Mapping[str, NDArray[Any]]
    header: Mapping[str, Any]
    dropped: tuple[str, ...] = ()


NOTHING_UNKNOWN = Unknown({}, {})

# By the rules of the format, an unknown dataset in these groups has one row for each row of the level.
_BY_ROW = ("candidates/", "steps/", "resolvents/")


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
    unknown:     data that this version of the schema does not know
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
    unknown: Unknown = field(default=NOTHING_UNKNOWN)
    schema: Schema = KNOWLEDGE_GRAPH

    def __repr__(self) -> str:
        """Return the path, the engine and the numbers of candidates and steps."""
        sizes = list(self.schema.count_rows(self.columns).values())[:2]
        return f"<Trace {describe_trace(self.source, self.header, *sizes)}>"

    @cached_property
    def root(self) -> int:
        """The root digest of all steps."""
        return root_digest(self.columns.candidates, self.digests.sequence, self.schema)


def describe_trace(source: str, header: Header, num_candidates: int, num_steps: int) -> str:
    """Describe a trace in one line: its path, its engine, and its size."""
    return f"{make_visible(source)}: {make_visible(header.engine.name)}, {num_candidates:,} candidates, {num_steps:,} steps"


def find_unknown(header: Header, arrays: Mapping[str, NDArray[Any]], raw: bytes, dropped: tuple[str, ...]) -> Unknown:
    """Collect the content of a file that is not in this version of the schema.

    arrays: datasets that the schema does not name
    raw:    the JSON of the header
    """
    fields = _without(msgspec.json.decode(raw), msgspec.to_builtins(header))
    if not fields and not arrays and not dropped:
        return NOTHING_UNKNOWN
    return Unknown(arrays, fields, dropped)


def join_unknown(parts: Sequence[Unknown]) -> Unknown:
    """Join the unknown data of several shards: append rows, and keep other data if they are the same in all shards.

    A dataset is listed as dropped if it is not in every shard, or if its parts do not fit together.
    """
    arrays = {}
    names = {name for part in parts for name in part.arrays}
    dropped = {name for part in parts for name in part.dropped}
    for name in sorted(names):
        found = [part.arrays[name] for part in parts if name in part.arrays]
        if len(found) == len(parts) and len({(a.dtype, a.shape[1:]) for a in found}) == 1:
            if name.startswith(_BY_ROW):
                arrays[name] = np.concatenate(found)
                continue
            if all(np.array_equal(found[0], other) for other in found[1:]):
                arrays[name] = found[0]
                continue
        dropped.add(name)
    header = parts[0].header if parts else {}
    return Unknown(arrays, header, tuple(sorted(dropped)))


def merge_fields(known: Mapping[str, Any], unknown: Mapping[str, Any]) -> dict[str, Any]:
    """Return a header's fields with the unknown ones put back where they were."""
    merged = dict(known)
    for name, value in unknown.items():
        if name not in merged:
            merged[name] = value
        elif isinstance(value, Mapping) and isinstance(merged[name], Mapping):
            merged[name] = merge_fields(merged[name], value)
    return merged


def _without(raw: Any, known: Any) -> dict[str, Any]:
    """Return the fields of the object `raw` that are not in `known`, including those of nested objects."""
    fields: dict[str, Any] = {}
    if not isinstance(raw, dict):
        return fields
    for name, value in raw.items():
        if name not in known:
            fields[name] = value
        elif isinstance(value, dict) and isinstance(known[name], dict) and (inner := _without(value, known[name])):
            fields[name] = inner
    return fields


Rebuild = Callable[[Trace], Trace]
"""A function that restores the goals of a compact trace. It raises a UserError if its clauses contradict its digests."""
