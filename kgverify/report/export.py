"""Exports of a trace for other programs: one of its tables in names, or the columns as stored."""

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.errors import UserError
from kgverify.escaping import escape_cell, escape_json
from kgverify.files.writing import replaced
from kgverify.report.tables import Table, list_table, to_arrow
from kgverify.trace.model.columns import expand_rows, select_candidates, starts_of
from kgverify.trace.model.trace import Trace


def parse_selection(text: str, num_candidates: int, where: str) -> NDArray[np.int64]:
    """Parse a selection of candidates: `all`, or numbers and ranges such as `0,5,10-20`, both ends included.

    UserError for any other text, and for a candidate that the trace does not have.
    """
    if text == "all":
        return np.arange(num_candidates)
    rows: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not (first.isdecimal() and (last or first).isdecimal()) or part.strip().endswith("-"):
            raise UserError(
                f"expected numbers and ranges, found {part.strip()!r}",
                where=where,
                fix="give `all`, or for example 0,5,10-20",
            )
        low, high = int(first), int(last or first)
        if low > high or high >= num_candidates:
            raise UserError(
                f"expected candidates from 0 to {num_candidates - 1}, found {part.strip()}",
                where=where,
                fix="choose candidates that the trace has",
            )
        rows += range(low, high + 1)
    return np.array(rows, np.int64)


def select(trace: Trace, rows: NDArray[np.int64]) -> Trace:
    """Return a trace of the given candidates alone, in the given order, without rankings."""
    steps = expand_rows(starts_of(trace.columns.candidates.num_steps), rows)
    digests = type(trace.digests)(*(column[steps] for column in trace.digests))
    return replace(trace, columns=select_candidates(trace.columns, rows), digests=digests, rankings=None)


def _write_json_lines(table: Table, path: Path) -> None:
    encoder = msgspec.json.Encoder()
    with path.open("wb") as file:
        for row in table.rows:
            # A score that is not a number becomes null in JSON.
            file.write(escape_json(encoder.encode(row)) + b"\n")


def _write_csv(table: Table, path: Path) -> None:
    """Write CSV, which people open in spreadsheets; lists become JSON in a cell, and text is escaped for people."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(table.columns))
        writer.writeheader()
        for row in table.rows:
            writer.writerow({name: _cell(value) for name, value in row.items()})


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        return escape_json(json.dumps(value, ensure_ascii=False).encode()).decode()
    return escape_cell(value) if isinstance(value, str) else value


def _write_npz(trace: Trace, rows: NDArray[np.int64], path: Path) -> None:
    """Write the columns as stored, by their names in `Trace.fields`, and the names of the ids."""
    chosen = select(trace, rows)
    arrays: dict[str, NDArray[Any]] = {"candidates.row": rows}
    for group, level in (*chosen.columns._asdict().items(), ("digests", chosen.digests)):
        for name, column in level._asdict().items():
            if f"{group}.{name}" in trace.fields:
                arrays[f"{group}.{name}"] = column
    for kind in ("predicates", "constants"):
        texts = [name.encode() for name in getattr(trace.symbols, kind)]
        arrays[f"symbols.{kind}_bytes"] = np.frombuffer(b"".join(texts), np.uint8)
        arrays[f"symbols.{kind}_offsets"] = starts_of(np.array([len(text) for text in texts], np.int64))
    with path.open("wb") as file:
        # savez_compressed takes the names as keywords, which may contain dots.
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def _write_parquet(table: Table, path: Path) -> None:
    listed = to_arrow(table)
    import pyarrow.parquet

    pyarrow.parquet.write_table(listed, path)


_WRITERS: Final[dict[str, Callable[[Table, Path], None]]] = {
    ".jsonl": _write_json_lines,
    ".csv": _write_csv,
    ".parquet": _write_parquet,
}
_ARRAYS: Final = ".npz"


def export_trace(trace: Trace, rows: NDArray[np.int64], path: Path, *, table: str = "steps") -> None:
    """Write a table of the given candidates in the format of the file's suffix.

    `.jsonl`, `.csv` and `.parquet` have the table in names; `.npz` has the columns as stored, whatever the table.

    UserError for another suffix or table, for Parquet without pyarrow, and for a path that cannot be written.
    """
    if path.suffix not in (*_WRITERS, _ARRAYS):
        known = ", ".join((*_WRITERS, _ARRAYS))
        raise UserError(f"unknown format {path.suffix!r}", where=str(path), fix=f"let the name end in {known}")
    listed = list_table(trace, table, rows, where="table")
    with replaced(path) as temporary:
        if path.suffix == _ARRAYS:
            _write_npz(trace, rows, temporary)
        else:
            _WRITERS[path.suffix](listed, temporary)
