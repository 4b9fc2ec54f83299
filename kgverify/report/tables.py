"""The tables of a trace, in names: candidates, steps, resolvents and rankings; their exports, and data frames."""

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.locate import render_output
from kgverify.comparison.step_view import Names, StepReader, outcome_name, side_name
from kgverify.errors import UserError, find_missing_dependency, suggest
from kgverify.escaping import escape_cell, escape_json
from kgverify.files.writing import replaced
from kgverify.program.outcomes import GoalKind
from kgverify.trace.model.columns import expand_rows, select_candidates, starts_of
from kgverify.trace.model.stage_items import StageReader
from kgverify.trace.model.trace import Trace

Row: TypeAlias = dict[str, Any]
Type: TypeAlias = "type | list[Type] | dict[str, Type]"
"""The type of a column: bool, int, float or str; a list with the type of its items; a struct with those of its fields."""


class Table(NamedTuple):
    """The columns of a table with their types, and its rows, made one by one."""

    columns: Mapping[str, Type]
    rows: Iterator[Row]


_CANDIDATE: Final[Mapping[str, Type]] = {
    "query": int, "side": str, "atom": str, "outcome": str, "is_limited": bool, "log_probability": float,
}  # fmt: skip
_STEP: Final[Mapping[str, Type]] = {
    "depth": int, "num_resolvents": int, "dropped_atoms": int, "dropped_resolvents": int, "choice": int, "outcome": str,
}  # fmt: skip
_RANKING: Final[Mapping[str, Type]] = {
    "query": int, "side": str, "num_ranked": int, "optimistic": float, "pessimistic": float,
}  # fmt: skip


def list_candidates(trace: Trace, rows: NDArray[np.int64]) -> Table:
    """Return a row for each of the given candidates."""
    columns = _held(trace, "candidates", _CANDIDATE)
    read = _candidate_reader(trace, columns)
    num_steps = trace.columns.candidates.num_steps
    listed = ({"candidate": row, **read(row), "num_steps": int(num_steps[row])} for row in rows.tolist())
    return Table({"candidate": int, **columns, "num_steps": int}, listed)


def _held(trace: Trace, group: str, columns: Mapping[str, Type]) -> dict[str, Type]:
    """Return the columns that the trace has."""
    return {name: kind for name, kind in columns.items() if f"{group}.{name}" in trace.fields}


def _candidate_reader(trace: Trace, names: Mapping[str, Type]) -> Callable[[int], Row]:
    c, named = trace.columns.candidates, Names(trace)
    read: dict[str, Callable[[int], Any]] = {
        "query": lambda row: int(c.query[row]),
        "side": lambda row: side_name(int(c.side[row])),
        "atom": lambda row: named.atom(tuple(c.atom[row].tolist())),
        "outcome": lambda row: outcome_name(int(c.outcome[row])),
        "is_limited": lambda row: bool(c.is_limited[row]),
        "log_probability": lambda row: float(c.log_probability[row]),
    }
    return lambda row: {name: read[name](row) for name in names}


def list_steps(trace: Trace, rows: NDArray[np.int64]) -> Table:
    """Return a row for each step of the given candidates, without the columns that the trace lacks.

    Resolvents are a list of structs: `goal`, `kind`, `clause`, `score`. So are the outputs of the stages, if the trace
    contains them: `stage`, `gave`.
    """
    fields = trace.fields
    of_candidate = _held(trace, "candidates", _CANDIDATE)
    of_step = _held(trace, "steps", _STEP)
    resolvent = _resolvent_columns(trace)
    # A step has an outcome of its own.
    renamed = {("candidate_outcome" if name == "outcome" else name): kind for name, kind in of_candidate.items()}
    columns: dict[str, Type] = {"candidate": int, **renamed, "step": int, "digest": str, **of_step}
    columns |= {"goal": [str]} if "steps.goal_atoms" in fields else {}
    columns |= {"resolvents": [resolvent]} if "resolvents.kind" in fields else {}
    columns |= {"stages": [{"stage": str, "gave": [str]}]} if "stages.told" in fields else {}
    return Table(columns, _step_rows(trace, rows, of_candidate, of_step, resolvent, columns))


def _step_rows(
    trace: Trace,
    rows: NDArray[np.int64],
    of_candidate: Mapping[str, Type],
    of_step: Mapping[str, Type],
    resolvent: Mapping[str, Type],
    columns: Mapping[str, Type],
) -> Iterator[Row]:
    names, reader, stages = Names(trace), StepReader(trace.columns), StageReader(trace.columns)
    read_candidate, describe = _candidate_reader(trace, of_candidate), _resolvent_reader(names, resolvent)
    for candidate in rows.tolist():
        first, values = reader.first_step[candidate], read_candidate(candidate)
        if "outcome" in values:
            values["candidate_outcome"] = values.pop("outcome")
        for step in range(int(trace.columns.candidates.num_steps[candidate])):
            row = {"candidate": candidate, **values, "step": step}
            row["digest"] = f"{int(trace.digests.sequence[first + step]):016x}"
            for name in of_step:
                value = int(getattr(trace.columns.steps, name)[first + step])
                row[name] = outcome_name(value) if name == "outcome" else value
            view = reader.read(first + step)
            if "goal" in columns:
                row["goal"] = [names.atom(atom) for atom in view.goal]
            if "resolvents" in columns:
                row["resolvents"] = [describe(each) for each in view.resolvents]
            if "stages" in columns:
                row["stages"] = [
                    {"stage": stage.value, "gave": list(render_output(stage, given, names))}
                    for stage, given in stages.read(first + step).items()
                ]
            yield row


def _resolvent_columns(trace: Trace) -> dict[str, Type]:
    fields = trace.fields
    columns: dict[str, Type] = {"goal": [str]} if "steps.goal_atoms" in fields else {}
    columns |= {"kind": str} if "resolvents.kind" in fields else {}
    columns |= {"clause": str} if "resolvents.origin" in fields else {}
    return columns | ({"score": float} if "resolvents.score" in fields else {})


def _resolvent_reader(names: Names, columns: Mapping[str, Type]) -> Callable[[Any], Row]:
    read: dict[str, Callable[[Any], Any]] = {
        "goal": lambda each: [names.atom(atom) for atom in each.atoms],
        "kind": lambda each: GoalKind(each.kind).name,
        "clause": lambda each: names.clause(*each.clause),
        "score": lambda each: each.score,
    }
    return lambda each: {name: read[name](each) for name in columns}


def list_resolvents(trace: Trace, rows: NDArray[np.int64]) -> Table:
    """Return a row for each resolvent of each step of the given candidates."""
    columns = _resolvent_columns(trace)
    has_choice = "steps.choice" in trace.fields
    read, reader = _resolvent_reader(Names(trace), columns), StepReader(trace.columns)

    def listed() -> Iterator[Row]:
        for candidate in rows.tolist():
            for step in range(int(trace.columns.candidates.num_steps[candidate])):
                view = reader.read(reader.first_step[candidate] + step)
                for i, each in enumerate(view.resolvents):
                    row = {"candidate": candidate, "step": step, "resolvent": i, **read(each)}
                    yield row | ({"is_chosen": i == view.choice} if has_choice else {})

    chosen: dict[str, Type] = {"is_chosen": bool} if has_choice else {}
    return Table({"candidate": int, "step": int, "resolvent": int, **columns, **chosen}, listed())


def list_rankings(trace: Trace, rows: NDArray[np.int64]) -> Table:
    """Return a row for each ranking of a query and side to which one of the given candidates belongs."""
    candidates, rankings = trace.columns.candidates, trace.rankings
    wanted = set(zip(candidates.query[rows].tolist(), candidates.side[rows].tolist(), strict=True))

    def listed() -> Iterator[Row]:
        columns = () if rankings is None else (column.tolist() for column in rankings)
        for query, side, *rest in zip(*columns, strict=True):
            if (query, side) in wanted:
                yield dict(zip(_RANKING, (query, side_name(side), *rest), strict=True))

    return Table(_RANKING, listed())


TABLES: Final[Mapping[str, Callable[[Trace, NDArray[np.int64]], Table]]] = {
    "candidates": list_candidates,
    "steps": list_steps,
    "resolvents": list_resolvents,
    "rankings": list_rankings,
}


def list_table(trace: Trace, table: str, rows: NDArray[np.int64] | None = None, *, where: str = "table") -> Table:
    """Return a table of a trace, of the given candidates or of all. UserError for a table that does not exist."""
    if table not in TABLES:
        raise UserError(
            f"unknown table {table!r}", where=where, fix=suggest(table, TABLES) or f"choose one of {', '.join(TABLES)}"
        )
    return TABLES[table](trace, np.arange(len(trace.columns.candidates.query)) if rows is None else rows)


def to_pandas(table: Table) -> Any:
    """Return a table as a `pandas.DataFrame`. MissingDependency without pandas."""
    try:
        import pandas
    except ImportError as error:
        raise find_missing_dependency(error) or error from error
    frame = pandas.DataFrame(list(table.rows), columns=list(table.columns))
    numbers = {name: kind.__name__ for name, kind in table.columns.items() if kind in (bool, int, float)}
    return frame.astype(numbers)


def to_polars(table: Table) -> Any:
    """Return a table as a `polars.DataFrame`. MissingDependency without polars."""
    try:
        import polars
    except ImportError as error:
        raise find_missing_dependency(error) or error from error
    scalars = {bool: polars.Boolean, int: polars.Int64, float: polars.Float64, str: polars.String}

    def convert(kind: Type) -> Any:
        if isinstance(kind, dict):
            return polars.Struct({name: convert(each) for name, each in kind.items()})
        return polars.List(convert(kind[0])) if isinstance(kind, list) else scalars[kind]

    schema = {name: convert(kind) for name, kind in table.columns.items()}
    return polars.DataFrame(list(table.rows), schema=schema)


def to_arrow(table: Table) -> Any:
    """Return a table as a `pyarrow.Table`. MissingDependency without pyarrow."""
    try:
        import pyarrow
    except ImportError as error:
        raise find_missing_dependency(error) or error from error
    scalars = {bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.string()}

    def convert(kind: Type) -> Any:
        if isinstance(kind, dict):
            return pyarrow.struct([(name, convert(each)) for name, each in kind.items()])
        return pyarrow.list_(convert(kind[0])) if isinstance(kind, list) else scalars[kind]

    schema = pyarrow.schema([(name, convert(kind)) for name, kind in table.columns.items()])
    return pyarrow.Table.from_pylist(list(table.rows), schema=schema)


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
