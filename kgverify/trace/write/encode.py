"""The datasets of a trace: those that every shard repeats, and all of a trace in memory."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.errors import UserError
from kgverify.program.program import Rule, Symbols
from kgverify.trace.model.header import Header, check_header, check_version, encode_header
from kgverify.trace.model.levels import TraceLevel, lower_arrays, parse_level, uncounted
from kgverify.trace.model.schema import (
    OPTIONAL_COLUMNS,
    SEQUENCE,
    Arrays,
    encode_columns,
    encode_level,
    encode_rules,
    encode_symbols,
)
from kgverify.trace.model.trace import Trace, Unknown, merge_fields
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
    header: Header,
    symbols: Symbols,
    clauses: Clauses,
    level: TraceLevel,
    absent: AbstractSet[str],
    unknown: Unknown,
    where: str,
) -> Arrays:
    """Encode what every shard repeats: header, names and clauses, as far as the level keeps them.

    UserError for another version of the schema, a column that must not be absent, and clauses or names that do not fit.
    """
    check_version(header.schema_version, f"{where}:header")
    if odd := sorted(absent - OPTIONAL_COLUMNS):
        raise UserError(
            f"{odd[0]} may not be absent, only {', '.join(sorted(OPTIONAL_COLUMNS))}",
            where=where,
            fix="write the column",
        )
    lines = clauses.fact_lines
    if clauses.facts is not None and lines is not None and not len(lines):
        lines = None
    check_facts(clauses.facts, lines, symbols, where)
    header = msgspec.structs.replace(
        header, level=level.value, absent=tuple(uncounted(level, absent | set(header.absent)))
    )
    arrays: Arrays = {"header": _encode_header(header, unknown, where)}
    arrays |= encode_symbols(symbols, where) | _encode_clauses(clauses.facts, lines, clauses.rules)
    check_rules(arrays, symbols, where)
    check_program(arrays, symbols, header.program_sha256, where)
    return lower_arrays(arrays, level) | {"header": arrays["header"]}


def encode_trace(trace: Trace) -> Arrays:
    """Encode every dataset of a trace, with the digests of the trace: they cannot be computed without goals."""
    arrays: Arrays = {"header": _encode_header(trace.header, trace.unknown, trace.source)}
    arrays |= encode_symbols(trace.symbols, trace.source)
    columns = encode_columns(trace.columns)
    arrays |= {path: column for path, column in columns.items() if path.replace("/", ".") in trace.fields}
    arrays[SEQUENCE] = trace.digests.sequence
    if trace.rankings is not None:
        arrays |= encode_level("rankings", trace.rankings)
    arrays |= _encode_clauses(trace.facts, trace.fact_lines, trace.rules)
    return lower_arrays(arrays, parse_level(trace.header.level, trace.source)) | dict(trace.unknown.arrays)


def _encode_clauses(
    facts: NDArray[np.int32] | None, lines: NDArray[np.int32] | None, rules: Sequence[Rule] | None
) -> Arrays:
    arrays: Arrays = {} if facts is None else {"program/facts": facts}
    if lines is not None:
        arrays["program/fact_lines"] = lines
    return arrays if rules is None else arrays | encode_rules(rules)


def _encode_header(header: Header, unknown: Unknown, where: str) -> NDArray[np.uint8]:
    check_header(header)
    try:
        content = msgspec.json.encode(merge_fields(encode_header(header), unknown.header))
    except UnicodeEncodeError as error:
        raise UserError(
            "holds text that UTF-8 cannot encode",
            where=f"{where}:header",
            fix="decode the input files as UTF-8",
        ) from error
    return np.frombuffer(content, np.uint8)
