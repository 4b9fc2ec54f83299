"""The tables of a trace, with names: candidates, steps, resolvents and rankings; and their exports and data frames."""

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.locate import render_output
from kgverify.comparison.step_view import Names, ResolventView, StepReader, outcome_name, side_name
from kgverify.errors import UserError, check_known, find_missing_dependency
from kgverify.escaping import escape_cell, escape_json
from kgverify.files.writing import replaced
from kgverify.program.outcomes import GoalKind
from kgverify.trace.model.columns import expand_rows, select_candidates, starts_of
from kgverify.trace.model.stage_items import StageReader
from kgverify.trace.model.trace import Trace

Row: TypeAlias = dict[str, Any]
Type: TypeAlias = "type | list[Type] | Mapping[str, Type]"
"""The type of a column: bool, int, float or str; a list with the type of its items; a struct with the types of its fields."""


class Table(NamedTuple):
    """The columns of a table with their types, and an iterator of its rows."""

    columns: Mapping[str, Type]
    rows: Iterator[Row]


_COLUMNS: Final[Mapping[str, Mapping[str, Type]]] = {
    "candidates": {
        "query": int, "side": str, "atom": str, "outcome": str, "is_limited": bool, "log_probability": float,
    },
    "steps": {
        "depth": int, "num_resolvents": int, "dropped_atoms": int, "dropped_resolvents": int, "choice": int,
        "outcome": str,
    },
    "resolvents": {"goal": [str], "kind": str, "clause": str, "score": float},
}  # fmt: skip
"""The columns of each level of a trace."""
_RANKING: Final[Mapping[str, Type]] = {
    "query": int, "side": str, "num_ranked": int, "optimistic": float, "pessimistic": float,
}  # fmt: skip
_FIELDS: Final = {"resolvents.goal": "steps.goal_atoms", "resolvents.clause": "resolvents.origin"}
"""The fields behind columns with other names."""


class _Reader:
    """A reader of the rows of tables, without the columns that the trace lacks."""

    def __init__(self, trace: Trace) -> None:
        self.trace, self.names, self.steps = trace, Names(trace), StepReader(trace.columns)
        self.columns: dict[str, dict[str, Type]] = {
            level: {
                name: kind
                for name, kind in columns.items()
                if _FIELDS.get(f"{level}.{name}", f"{level}.{name}") in trace.fields
            }
            for level, columns in _COLUMNS.items()
        }
        self._shown: dict[str, Callable[[Any], Any]] = {
            "atom": lambda atom: self.names.atom(tuple(atom)),
            "side": side_name,
            "outcome": outcome_name,
            "is_limited": bool,
        }

    def read(self, level: str, row: int) -> Row:
        """Return the values of a candidate or a step."""
        columns = getattr(self.trace.columns, level)
        values = {name: getattr(columns, name)[row].tolist() for name in self.columns[level]}
        return {name: self._shown[name](value) if name in self._shown else value for name, value in values.items()}

    def read_resolvent(self, resolvent: ResolventView) -> Row:
        """Return the values of a resolvent."""
        values = {
            "goal": [self.names.atom(atom) for atom in resolvent.atoms],
            "kind": GoalKind(resolvent.kind).name,
            "clause": self.names.clause(*resolvent.clause),
            "score": resolvent.score,
        }
        return {name: values[name] for name in self.columns["resolvents"]}

    def rows_of(self, candidate: int) -> range:
        """Return the rows of the steps of a candidate."""
        return range(*self.steps.first_step[candidate : candidate + 2])


def list_candidates(trace: Trace, rows: NDArray[np.int64]) -> Table:
    """Return a row for each of the given candidates."""
    reader, num_steps = _Reader(trace), trace.columns.candidates.num_steps
    listed = (
        {"candidate": row, **reader.read("candidates", row), "num_steps": int(num_steps[row])} for row in rows.tolist()
    )
    return Table({"candidate": int, **reader.columns["candidates"], "num_steps": int}, listed)


def list_steps(trace: Trace, rows: NDArray[np.int64]) -> Table:
    """Return a row for each step of the given candidates, without the columns that the trace lacks.

    Resolvents are a list of structs: `goal`, `kind`, `clause`, `score`. So are the outputs of the stages, if the trace
    contains them: `stage`, `gave`.
    """
    reader, stages = _Reader(trace), StageReader(trace.columns)
    # A step has its own outcome.
    of_candidate = reader.columns["candidates"].items()
    renamed = {("candidate_outcome" if name == "outcome" else name): kind for name, kind in of_candidate}
    columns: dict[str, Type] = {"candidate": int, **renamed, "step": int, "digest": str, **reader.columns["steps"]}
    columns |= {"goal": [str]} if "steps.goal_atoms" in trace.fields else {}
    columns |= {"resolvents": [reader.columns["resolvents"]]} if "resolvents.kind" in trace.fields else {}
    columns |= {"stages": [{"stage": str, "gave": [str]}]} if "stages.told" in trace.fields else {}

    def list_rows() -> Iterator[Row]:
        for candidate in rows.tolist():
            values = reader.read("candidates", candidate)
            if "outcome" in values:
                values["candidate_outcome"] = values.pop("outcome")
            for step, row in enumerate(reader.rows_of(candidate)):
                digest = f"{int(trace.digests.sequence[row]):016x}"
                listed = {"candidate": candidate, **values, "step": step, "digest": digest, **reader.read("steps", row)}
                view = reader.steps.read(row)
                if "goal" in columns:
                    listed["goal"] = [reader.names.atom(atom) for atom in view.goal]
                if "resolvents" in columns:
                    listed["resolvents"] = [reader.read_resolvent(each) for each in view.resolvents]
                if "stages" in columns:
                    listed["stages"] = [
                        {"stage": stage.value, "gave": list(render_output(stage, given, reader.names))}
                        for stage, given in stages.read(row).items()
                    ]
                yield listed

    return Table(columns, list_rows())


def list_resolvents(trace: Trace, rows: NDArray[np.int64]) -> Table:
    """Return a row for each resolvent of each step of the given candidates."""
    reader = _Reader(trace)
    chosen: dict[str, Type] = {"is_chosen": bool} if "steps.choice" in trace.fields else {}

    def list_rows() -> Iterator[Row]:
        for candidate in rows.tolist():
            for step, row in enumerate(reader.rows_of(candidate)):
                view = reader.steps.read(row)
                for i, each in enumerate(view.resolvents):
                    listed = {"candidate": candidate, "step": step, "resolvent": i, **reader.read_resolvent(each)}
                    yield listed | dict.fromkeys(chosen, i == view.choice)

    return Table(
        {"candidate": int, "step": int, "resolvent": int, **reader.columns["resolvents"], **chosen}, list_rows()
    )


def list_rankings(trace: Trace, rows: NDArray[np.int64]) -> Table:
    """Return a row for each ranking that one of the given candidates belongs to."""
    candidates = trace.columns.candidates
    wanted = set(zip(candidates.query[rows].tolist(), candidates.side[rows].tolist(), strict=True))
    columns = () if trace.rankings is None else (column.tolist() for column in trace.rankings)
    listed = (
        dict(zip(_RANKING, (query, side_name(side), *rest), strict=True))
        for query, side, *rest in zip(*columns, strict=True)
        if (query, side) in wanted
    )
    return Table(_RANKING, listed)


TABLES: Final[Mapping[str, Callable[[Trace, NDArray[np.int64]], Table]]] = {
    "candidates": list_candidates,
    "steps": list_steps,
    "resolvents": list_resolvents,
    "rankings": list_rankings,
}


def list_table(trace: Trace, table: str, rows: NDArray[np.int64] | None = None, *, where: str = "table") -> Table:
    """Return a table of a trace, for the given candidates or all. UserError for an unknown table."""
    check_known(table, TABLES, "table", where)
    return TABLES[table](trace, np.arange(len(trace.columns.candidates.query)) if rows is None else rows)


def _import_library(name: str) -> Any:
    """Import a library that may not be installed. MissingDependency without it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise find_missing_dependency(error) or error from error


def to_pandas(table: Table) -> Any:
    """Return a table as a `pandas.DataFrame`. MissingDependency without pandas."""
    pandas = _import_library("pandas")
    frame = pandas.DataFrame(list(table.rows), columns=list(table.columns))
    numbers = {name: kind.__name__ for name, kind in table.columns.items() if kind in (bool, int, float)}
    return frame.astype(numbers)


def to_polars(table: Table) -> Any:
    """Return a table as a `polars.DataFrame`. MissingDependency without polars."""
    polars = _import_library("polars")
    scalars = {bool: polars.Boolean, int: polars.Int64, float: polars.Float64, str: polars.String}
    schema = _convert(table.columns, scalars, polars.List, polars.Struct)
    return polars.DataFrame(list(table.rows), schema=schema)


def to_arrow(table: Table) -> Any:
    """Return a table as a `pyarrow.Table`. MissingDependency without pyarrow."""
    pyarrow = _import_library("pyarrow")
    scalars = {bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.string()}
    fields = _convert(table.columns, scalars, pyarrow.list_, pyarrow.struct)
    return pyarrow.Table.from_pylist(list(table.rows), schema=pyarrow.schema(fields))


def _convert(
    columns: Mapping[str, Type],
    scalars: Mapping[Any, Any],
    list_of: Callable[[Any], Any],
    struct_of: Callable[[Any], Any],
) -> dict[str, Any]:
    """Translate the types of columns into another library's types."""

    def convert(kind: Type) -> Any:
        if isinstance(kind, Mapping):
            return struct_of(_convert(kind, scalars, list_of, struct_of))
        return list_of(convert(kind[0])) if isinstance(kind, list) else scalars[kind]

    return {name: convert(kind) for name, kind in columns.items()}


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
    """Return a trace of only the given candidates, in the given order, without rankings."""
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
    """Write CSV for spreadsheets. Lists become JSON in a cell, and text is escaped for people."""
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
    """Write the columns as stored, under their names in `Trace.fields`, and the names of the ids."""
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
        # `savez_compressed` takes the names as keywords, which may contain dots.
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


def check_format(path: Path, *further: str) -> None:
    """Raise UserError unless a file's suffix is a format of tables, or a further one."""
    if path.suffix not in (*_WRITERS, *further):
        known = ", ".join((*_WRITERS, *further))
        raise UserError(f"unknown format {path.suffix!r}", where=str(path), fix=f"let the name end in {known}")


def write_table(table: Table, path: Path) -> None:
    """Write a table as JSON lines, CSV or Parquet, by the suffix. UserError as in `check_format`, or if it cannot be written."""
    check_format(path)
    with replaced(path) as temporary:
        _WRITERS[path.suffix](table, temporary)


def export_trace(trace: Trace, rows: NDArray[np.int64], path: Path, *, table: str = "steps") -> None:
    """Write a table of the given candidates in the format of the file's suffix.

    `.jsonl`, `.csv` and `.parquet` contain the table with names; `.npz` contains the columns as stored, whatever the table.

    UserError for another suffix or table, for Parquet without pyarrow, and for a path that cannot be written.
    """
    check_format(path, _ARRAYS)
    listed = list_table(trace, table, rows, where="table")
    if path.suffix != _ARRAYS:
        write_table(listed, path)
        return
    with replaced(path) as temporary:
        _write_npz(trace, rows, temporary)
