"""The datasets of a trace: those that every shard repeats, and all of a trace in memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.errors import UserError
from kgverify.program.program import Rule, Symbols
from kgverify.trace.model.header import Header, check_header, check_version, encode_header
from kgverify.trace.model.levels import is_kept, lower_arrays, parse_level
from kgverify.trace.model.schema import (
    OPTIONAL_COLUMNS,
    SEQUENCE,
    Arrays,
    encode_columns,
    encode_level,
    encode_rules,
    encode_symbols,
)
from kgverify.trace.model.trace import NOTHING_UNKNOWN, Trace, Unknown, merge_fields
from kgverify.trace.model.validate import check_facts, check_program, check_rules


@dataclass(frozen=True)
class Clauses:
    """The clauses of the program, as far as a trace stores them.

    facts:      int32 [F, 3]  the facts; resolvents name them by their index
    fact_lines: int32 [F]     their lines in the facts' file
    rules:      the rules, from which goals are rebuilt if the level leaves them out
    """

    facts: NDArray[np.int32] | None = None
    fact_lines: NDArray[np.int32] | None = None
    rules: Sequence[Rule] | None = None


NO_CLAUSES: Final = Clauses()


def encode_shared(
    header: Header, symbols: Symbols, clauses: Clauses, where: str, unknown: Unknown = NOTHING_UNKNOWN
) -> Arrays:
    """Encode what every shard repeats: header, names and clauses. UserError for clauses or names that do not fit."""
    check_version(header.schema_version, f"{where}:header")
    check_header(header)
    try:
        content = msgspec.json.encode(merge_fields(encode_header(header), unknown.header))
    except UnicodeEncodeError as error:
        raise UserError(
            "holds text that UTF-8 cannot encode",
            where=f"{where}:header",
            fix="decode the input files as UTF-8",
        ) from error
    arrays: Arrays = {"header": np.frombuffer(content, np.uint8)} | encode_symbols(symbols, where)
    facts, lines = clauses.facts, clauses.fact_lines
    if facts is not None and lines is not None and not len(lines):
        lines = None
    check_facts(facts, lines, symbols, where)
    if facts is not None:
        arrays["program/facts"] = facts
    if lines is not None:
        arrays["program/fact_lines"] = lines
    if clauses.rules is not None:
        arrays |= encode_rules(clauses.rules)
    check_rules(arrays, symbols, where)
    check_program(arrays, symbols, header.program_sha256, where)
    return arrays


def encode_trace(trace: Trace) -> Arrays:
    """Encode every dataset of a trace at its level, with the digests of the trace: they cannot be computed without goals."""
    level = parse_level(trace.header.level, trace.source)
    clauses = Clauses(trace.facts, trace.fact_lines, trace.rules)
    arrays = encode_shared(trace.header, trace.symbols, clauses, trace.source, trace.unknown)
    columns = encode_columns(trace.columns, OPTIONAL_COLUMNS - trace.fields)
    arrays |= {path: column for path, column in columns.items() if is_kept(path, level)}
    arrays[SEQUENCE] = trace.digests.sequence
    if trace.rankings is not None:
        arrays |= encode_level("rankings", trace.rankings)
    return lower_arrays(arrays, level) | dict(trace.unknown.arrays)
