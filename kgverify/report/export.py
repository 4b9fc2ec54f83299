"""Exports of a trace for other programs: one row in names for each step, or the columns as stored."""

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.stage_difference import render_output
from kgverify.comparison.step_view import Names, StepReader, outcome_name, side_name
from kgverify.errors import UserError, find_missing_dependency
from kgverify.escaping import escape_cell, escape_json
from kgverify.files.writing import replaced
from kgverify.program.outcomes import GoalKind
from kgverify.trace.model.columns import expand_rows, select_candidates, starts_of
from kgverify.trace.model.stage_items import StageReader
from kgverify.trace.model.trace import Trace

Row = dict[str, Any]

_STEP: Final = ("depth", "num_resolvents", "dropped_atoms", "dropped_resolvents", "choice", "outcome")


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


def step_rows(trace: Trace, rows: NDArray[np.int64]) -> Iterator[Row]:
    """Yield a row in names for each step of the given candidates, without the fields that the trace lacks.

    Resolvents are a list of objects: `goal`, `kind`, `clause`, `score`. So are the outputs of the stages, if the trace
    contains them: `stage`, `gave`.
    """
    names, reader, stages = Names(trace), StepReader(trace.columns), StageReader(trace.columns)
    fields = trace.fields
    candidates = trace.columns.candidates
    has_goals, has_kinds = "steps.goal_atoms" in fields, "resolvents.kind" in fields
    for candidate in rows.tolist():
        values: Row = {
            "query": int(candidates.query[candidate]),
            "side": side_name(int(candidates.side[candidate])),
            "atom": names.atom(tuple(candidates.atom[candidate].tolist())),
            "candidate_outcome": outcome_name(int(candidates.outcome[candidate])),
            "is_limited": bool(candidates.is_limited[candidate]),
            "log_probability": float(candidates.log_probability[candidate]),
        }
        head = {"candidate": candidate} | {
            name: value for name, value in values.items() if f"candidates.{name.removeprefix('candidate_')}" in fields
        }
        first = reader.first_step[candidate]
        for step in range(int(candidates.num_steps[candidate])):
            row = head | {"step": step, "digest": f"{int(trace.digests.sequence[first + step]):016x}"}
            for name in _STEP:
                if f"steps.{name}" in fields:
                    value = int(getattr(trace.columns.steps, name)[first + step])
                    row[name] = outcome_name(value) if name == "outcome" else value
            view = reader.read(first + step)
            if has_goals:
                row["goal"] = [names.atom(atom) for atom in view.goal]
            if has_kinds:
                row["resolvents"] = [
                    ({"goal": [names.atom(atom) for atom in r.atoms]} if has_goals else {})
                    | {"kind": GoalKind(r.kind).name}
                    | ({"clause": names.clause(*r.clause)} if "resolvents.origin" in fields else {})
                    | ({"score": r.score} if "resolvents.score" in fields else {})
                    for r in view.resolvents
                ]
            if "stages.told" in fields:
                row["stages"] = [
                    {"stage": stage.value, "gave": list(render_output(stage, given, names))}
                    for stage, given in stages.read(first + step).items()
                ]
            yield row


def _write_json_lines(trace: Trace, rows: NDArray[np.int64], path: Path) -> None:
    encoder = msgspec.json.Encoder()
    with path.open("wb") as file:
        for row in step_rows(trace, rows):
            # A score that is not a number becomes null in JSON.
            file.write(escape_json(encoder.encode(row)) + b"\n")


def _write_csv(trace: Trace, rows: NDArray[np.int64], path: Path) -> None:
    """Write CSV, which people open in spreadsheets; lists become JSON in a cell, and text is escaped for people."""
    writer: Any = None
    with path.open("w", encoding="utf-8", newline="") as file:
        for row in step_rows(trace, rows):
            if writer is None:
                writer = csv.DictWriter(file, list(row))
                writer.writeheader()
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


def _write_parquet(trace: Trace, rows: NDArray[np.int64], path: Path) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise find_missing_dependency(error, where=str(path)) or error from error
    listed = list(step_rows(trace, rows))
    schema = _arrow_schema(pyarrow, listed[0]) if listed else pyarrow.schema([])
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(listed, schema=schema), path)


def _arrow_schema(arrow: Any, row: Row) -> Any:
    """Return the types of a row's columns, so that an empty list has a type."""
    texts = {"side", "atom", "candidate_outcome", "digest", "outcome"}
    resolvent = {"goal": arrow.list_(arrow.string()), "kind": arrow.string(), "clause": arrow.string()}
    resolvent["score"] = arrow.float64()
    held = row["resolvents"][0] if row.get("resolvents") else resolvent

    def type_of(name: str) -> Any:
        if name == "resolvents":
            return arrow.list_(arrow.struct([(key, kind) for key, kind in resolvent.items() if key in held]))
        if name == "stages":
            return arrow.list_(arrow.struct([("stage", arrow.string()), ("gave", arrow.list_(arrow.string()))]))
        if name == "goal":
            return arrow.list_(arrow.string())
        if name in texts:
            return arrow.string()
        return {"is_limited": arrow.bool_(), "log_probability": arrow.float64()}.get(name, arrow.int64())

    return arrow.schema([(name, type_of(name)) for name in row])


_WRITERS: Final[dict[str, Callable[[Trace, NDArray[np.int64], Path], None]]] = {
    ".jsonl": _write_json_lines,
    ".csv": _write_csv,
    ".npz": _write_npz,
    ".parquet": _write_parquet,
}


def export_steps(trace: Trace, rows: NDArray[np.int64], path: Path) -> int:
    """Write the steps of the given candidates in the format of the file's suffix. Return the number of steps.

    `.jsonl`, `.csv` and `.parquet` have one row in names for each step; `.npz` has the columns as stored.

    UserError for another suffix, for Parquet without pyarrow, and for a path that cannot be written.
    """
    write = _WRITERS.get(path.suffix)
    if write is None:
        raise UserError(
            f"unknown format {path.suffix!r}", where=str(path), fix=f"let the name end in {', '.join(_WRITERS)}"
        )
    with replaced(path) as temporary:
        write(trace, rows, temporary)
    return int(trace.columns.candidates.num_steps[rows].sum(dtype=np.int64))
