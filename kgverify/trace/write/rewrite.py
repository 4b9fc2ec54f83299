"""Writing a trace again that was read, or made in memory: what it holds, no more, at its own level."""

from pathlib import Path

import msgspec
import numpy as np

from kgverify import __version__
from kgverify.trace.files.manifest import write_at_once
from kgverify.trace.hdf5.datasets import write_arrays
from kgverify.trace.model.header import SCHEMA_VERSION
from kgverify.trace.model.levels import has_goals, lower_arrays, packing_of, parse_level
from kgverify.trace.model.schema import (
    OPTIONAL_COLUMNS,
    Arrays,
    encode_columns,
    encode_level,
    encode_rules,
    encode_symbols,
)
from kgverify.trace.model.trace import Trace
from kgverify.trace.model.unknown_data import merge_fields
from kgverify.trace.write.writer import write_trace


def encode_trace(trace: Trace) -> Arrays:
    """Every dataset of a trace, by path. Digests are those of the trace: only the reader of goals can compute them."""
    header = merge_fields(msgspec.to_builtins(trace.header), trace.unknown.header)
    arrays: Arrays = {"header": np.frombuffer(msgspec.json.encode(header), np.uint8)}
    arrays |= encode_symbols(trace.symbols, trace.source)
    columns = encode_columns(trace.columns)
    arrays |= {path: column for path, column in columns.items() if path.replace("/", ".") in trace.fields}
    arrays |= encode_level("digests", trace.digests)
    if trace.rankings is not None:
        arrays |= encode_level("rankings", trace.rankings)
    if trace.facts is not None:
        arrays["program/facts"] = trace.facts
    if trace.fact_lines is not None:
        arrays["program/fact_lines"] = trace.fact_lines
    if trace.rules is not None:
        arrays |= encode_rules(trace.rules)
    return lower_arrays(arrays, parse_level(trace.header.level, trace.source)) | dict(trace.unknown.arrays)


def write_again(trace: Trace, path: Path, *, is_archived: bool = False) -> None:
    """Write a trace at its own level, with all that this version does not know of it. UserError as `write_trace`."""
    level = parse_level(trace.header.level, trace.source)
    if has_goals(level):
        write_trace(
            path,
            msgspec.structs.replace(trace.header, schema_version=SCHEMA_VERSION),
            trace.symbols,
            trace.columns,
            trace.rankings,
            facts=trace.facts,
            fact_lines=trace.fact_lines,
            absent=OPTIONAL_COLUMNS - trace.fields,
            is_archived=is_archived,
            rules=trace.rules,
            unknown=trace.unknown,
        )
        return
    creator = trace.header.creator or f"kgverify {__version__}"
    packing = packing_of(level, is_archived=is_archived)
    write_at_once(path, lambda temporary: write_arrays(temporary, encode_trace(trace), creator, packing))
