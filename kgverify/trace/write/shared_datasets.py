"""What every shard of a trace repeats: the header, the names, the program."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.errors import UserError
from kgverify.program.program import Rule, Symbols
from kgverify.trace.model.header import SCHEMA_VERSION, Header
from kgverify.trace.model.levels import TraceLevel, lower_arrays, uncounted
from kgverify.trace.model.schema import OPTIONAL_COLUMNS, Arrays, encode_rules, encode_symbols
from kgverify.trace.model.trace import Unknown
from kgverify.trace.model.unknown_data import merge_fields
from kgverify.trace.model.validate import check_rules


def check_writable(header: Header, absent: AbstractSet[str], where: str) -> None:
    """UserError for another version of the schema than is written, and for a column that may not be absent."""
    if header.schema_version != SCHEMA_VERSION:
        raise UserError(
            f"schema version is {header.schema_version}, expected {SCHEMA_VERSION}",
            where=f"{where}:header",
            fix=f"write schema version {SCHEMA_VERSION}",
        )
    if odd := sorted(absent - OPTIONAL_COLUMNS):
        raise UserError(
            f"{odd[0]} may not be absent, only {', '.join(sorted(OPTIONAL_COLUMNS))}",
            where=where,
            fix="write the column",
        )


def encode_repeated(
    header: Header,
    level: TraceLevel,
    absent: AbstractSet[str],
    symbols: Symbols,
    facts: NDArray[np.int32] | None,
    fact_lines: NDArray[np.int32] | None,
    rules: Sequence[Rule] | None,
    unknown: Unknown,
    where: str,
) -> Arrays:
    """The arrays, as the level has them; the header says the level. UserError for rules or names that do not fit."""
    header = msgspec.structs.replace(
        header, level=level.value, absent=tuple(uncounted(level, absent | set(header.absent)))
    )
    arrays: Arrays = {"header": np.frombuffer(_encode_header(header, unknown, where), np.uint8)}
    arrays |= encode_symbols(symbols, where)
    if facts is not None:
        arrays["program/facts"] = facts
    if fact_lines is not None:
        arrays["program/fact_lines"] = fact_lines
    if rules:
        arrays |= encode_rules(rules)
        check_rules(arrays, symbols, where)
    return lower_arrays(arrays, level) | {"header": arrays["header"]}


def _encode_header(header: Header, unknown: Unknown, where: str) -> bytes:
    try:
        return msgspec.json.encode(merge_fields(msgspec.to_builtins(header), unknown.header))
    except UnicodeEncodeError as error:
        raise UserError(
            "holds text that UTF-8 cannot encode",
            where=f"{where}:header",
            fix="decode the input files as UTF-8",
        ) from error
