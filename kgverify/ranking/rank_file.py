"""Files of ranks: a table or JSON lines with a row for each query and side, as most evaluators can print them."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, cast

import msgspec
import numpy as np

from kgverify.errors import UserError
from kgverify.files.reading import open_file
from kgverify.graphs.formats.fields import Unquoted, find_roles, read_rows
from kgverify.graphs.formats.reading import line_error, read_text, show, split_lines
from kgverify.program.atoms import Atom, NamedAtom
from kgverify.program.outcomes import Side
from kgverify.program.program import Program, Source, Symbols
from kgverify.trace.model.columns import UNKNOWN, Rankings

_MAX: Final = (1 << 31) - 1
_ROLES: Final = ("head", "relation", "tail")
_SIDES: Final = {"head": Side.HEAD, "tail": Side.TAIL, "both": Side.NONE}
_FIX: Final = (
    "name the columns query (from 0, in the order of its split) or head, relation and tail; side (head, tail or both);"
    " and rank, or optimistic and pessimistic, from 1: if yours count from 0, add 1"
    ". For a trace in JSON lines: kgverify trace import"
)
_Rank = Annotated[float, msgspec.Meta(ge=1, le=_MAX)]


class RankRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a file of ranks: a query, by its index in the split, by its names, or both; a side; and a rank, or its bounds."""

    source: Source
    side: Literal["head", "tail", "both"]
    query: Annotated[int, msgspec.Meta(ge=0, le=_MAX)] | None = None
    head: str | None = None
    relation: str | None = None
    tail: str | None = None
    rank: _Rank | None = None
    optimistic: _Rank | None = None
    pessimistic: _Rank | None = None
    num_ranked: Annotated[int, msgspec.Meta(ge=1, le=_MAX)] = UNKNOWN

    @property
    def triple(self) -> NamedAtom | None:
        """The names of the triple; None if the row lacks them."""
        names = self.relation, self.head, self.tail
        return NamedAtom(*names) if all(names) else None  # type: ignore[arg-type]  # all three are texts

    @property
    def bounds(self) -> tuple[float, float]:
        """The optimistic and the pessimistic rank."""
        low, high = (self.optimistic, self.pessimistic) if self.rank is None else (self.rank, self.rank)
        return low or 0.0, high or 0.0

    def __str__(self) -> str:
        triple = self.triple
        return f"query {self.query}" if triple is None else show(f"{triple[0]}({triple[1]}, {triple[2]})")

    def error(self, expected: str, found: object = None, fix: str = _FIX) -> UserError:
        """Return the error for this row."""
        return line_error(self.source, expected, str(self if found is None else found), fix)


def holds_text(path: str | Path) -> bool:
    """Return whether a path leads to a text, which may be a file of ranks and is no trace."""
    if not Path(path).is_file():
        return False
    with open_file(Path(path), purpose="a trace or a file of ranks") as file:
        begin = file.read(4096)
    return b"\0" not in begin and b"\x89HDF" not in begin


def read_rank_file(path: str | Path) -> list[RankRow]:
    """Read a file of ranks: tabs, commas, semicolons or pipes below a header row, or JSON lines.

    UserError, with file and line, for anything that is ambiguous, or is no side, or no rank from 1.
    """
    text = read_text(Path(path), purpose="a file of ranks")
    lines = [(Source(text.name, number), line) for number, line in split_lines(text.text) if line.strip()]
    is_json = bool(lines) and lines[0][1].lstrip()[0] in "{["
    records = _read_objects(lines) if is_json else _read_table(lines) if lines else iter(())
    rows = [_parse(source, fields) for source, fields in records]
    if not rows:
        raise UserError("expected ranks, found none", where=text.name, fix=_FIX)
    both = next((row for row in rows if row.side == "both"), None)
    if both is not None and any(row.side != "both" for row in rows):
        raise both.error("the sides head and tail, or both", "both beside a single side", "keep one of the two")
    return rows


def _read_objects(lines: Sequence[tuple[Source, str]]) -> Iterator[tuple[Source, dict[str, Any]]]:
    for source, line in lines:
        try:
            yield source, msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise line_error(source, "a JSON object", show(line), _FIX) from error


def _read_table(lines: Sequence[tuple[Source, str]]) -> Iterator[tuple[Source, dict[str, str]]]:
    sources, texts = zip(*lines, strict=True)
    try:
        rows = read_rows(texts)
    except Unquoted as error:
        source, text = lines[error.args[0]]
        raise line_error(
            source, "names that end at their quotes", show(text), "write a quote in a name twice"
        ) from error
    header = [name.strip().lower() for name in rows[0]]
    for source, text, row in zip(sources, texts, rows, strict=True):
        if len(row) != len(set(header)):
            fix = "name each column once, and give every row all columns"
            raise line_error(source, f"{len(set(header))} fields, as in the header row", show(text), fix)
        if source is not sources[0]:
            yield source, dict(zip(header, map(str.strip, row), strict=True))


def _parse(source: Source, fields: Mapping[str, Any]) -> RankRow:
    roles = find_roles(list(fields))
    named = {role: list(fields.values())[column] for role, column in zip(_ROLES, roles or (), strict=roles is not None)}
    others = [name for name in fields if "rank" in name and name not in RankRow.__struct_fields__]
    try:
        known = {name: value for name, value in fields.items() if name in RankRow.__struct_fields__}
        row = msgspec.convert({**known, **named, "source": source}, RankRow, strict=False)
    except msgspec.ValidationError as error:
        found = f"{show(str(dict(fields)))} ({error})"
        raise line_error(source, "a query, a side and a rank", found, _FIX) from error
    low, high = row.bounds
    if not low or not high or (row.rank is not None and (others or row.optimistic or row.pessimistic)):
        raise row.error("one rank, or an optimistic and a pessimistic one", ", ".join(map(show, fields)))
    if (row.query is None and row.triple is None) or (any(named.values()) and row.triple is None):
        raise row.error("an index of the query, or three names", show(str(dict(fields))))
    if not low <= high <= row.num_ranked:
        raise row.error("optimistic <= pessimistic <= num_ranked", show(str(dict(fields))))
    return row


def list_queries(files: Sequence[Sequence[RankRow]]) -> tuple[Symbols, dict[int, Atom]]:
    """Return the queries of files without a graph, numbered by the indices if every row has one. UserError without names."""
    rows = [row for file in files for row in file]
    if (bare := next((row for row in rows if row.triple is None), None)) is not None:
        raise bare.error(
            "a triple, since there is no graph", fix="give --graph, or the columns head, relation and tail"
        )
    has_index, numbers = all(row.query is not None for row in rows), dict[NamedAtom, int]()
    for row in rows:
        numbers.setdefault(cast(NamedAtom, row.triple), cast(int, row.query) if has_index else len(numbers))
    symbols = Program.from_names(facts=(), queries=numbers).symbols
    return symbols, {query: symbols.encode(triple) for triple, query in numbers.items()}


def place_ranks(
    rows: Sequence[RankRow], symbols: Symbols, atoms: Mapping[int, Atom], of: str, *, is_whole: bool = False
) -> Rankings:
    """Return the ranks of the given queries, by query and side.

    of:       where the queries are from, for errors
    is_whole: whether a row of another query is an error; else it is left out

    UserError for a triple that differs from its query's, and for two rows of one query and side.
    """
    numbers = {_name(symbols, atom): query for query, atom in atoms.items()}
    found: dict[tuple[int, Side], RankRow] = {}
    for row in rows:
        query = numbers.get(cast(NamedAtom, row.triple)) if row.query is None else row.query
        if query is None or query not in atoms:
            if is_whole:
                raise row.error(f"one of the {len(atoms):,} queries of {of}", fix="check the graph and --split")
            continue
        if row.triple not in (None, _name(symbols, atoms[query])):
            raise row.error(f"the triple of query {query} of {of}", fix=f"number queries from 0, in the order of {of}")
        if (other := found.setdefault((query, _SIDES[row.side]), row)) is not row:
            raise row.error("one row for each query and side", f"those of line {other.source.line} again", "remove one")
    keys = sorted(found)
    values = ((*key, found[key].num_ranked, *found[key].bounds) for key in keys)
    dtype = [(name, each) for name, each in zip(Rankings._fields, ("i4", "i1", "u4", "f8", "f8"), strict=True)]
    table = np.array(list(values), dtype)
    return Rankings(*(np.ascontiguousarray(table[name]) for name in Rankings._fields))


def _name(symbols: Symbols, atom: Atom) -> NamedAtom:
    return NamedAtom(symbols.predicates[atom.predicate], *(symbols.constants[term] for term in atom[1:]))
