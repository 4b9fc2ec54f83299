"""The schema of a trace as a value: the columns of one kind of problem, with their types, levels, stages and equality.

All code that reads, writes, compares, alters or shows columns looks them up here. `KNOWLEDGE_GRAPH`, in
`kgverify.trace.model.columns`, is the schema of derivations in knowledge graphs, and the default everywhere.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from functools import cached_property
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

from kgverify.errors import UserError, check_known
from kgverify.program.outcomes import Side

FORMAT: Final = "kgverify-trace"

RECORD_AGAIN: Final = "copy the trace from its source again, or record it again"

Arrays = dict[str, NDArray[Any]]
"""Datasets by path."""

SEQUENCE: Final = "digests/sequence"
"""The path of the digests that a writer writes for the steps."""


class TraceLevel(StrEnum):
    """The level of a trace: how much it keeps, from the least to the most.

    digests: the candidates, and one digest of each step
    steps:   also the goals, resolvents, scores and choices of the steps
    deep:    also the output of each stage of each step
    """

    DIGESTS = "digests"
    STEPS = "steps"
    DEEP = "deep"


_LEVELS: Final = tuple(TraceLevel)

LevelName: TypeAlias = Literal["digests", "steps", "deep"]
"""The name of a level."""


class Packing(StrEnum):
    """The storage of the datasets in a file.

    plain:   contiguous, to be read through a memory map
    small:   with gzip and shuffle if that saves half, else contiguous
    archive: every dataset with gzip, shuffle and fletcher32
    """

    PLAIN = "plain"
    SMALL = "small"
    ARCHIVE = "archive"


def parse_level(text: str, where: str) -> TraceLevel:
    """Return the level of this name. UserError for an unknown name."""
    check_known(text, _LEVELS, "level", where)
    return TraceLevel(text)


def has_goals(level: str) -> bool:
    """Return whether a trace of this level holds the atoms of its goals, so that digests can be computed from it."""
    return level != TraceLevel.DIGESTS


def packing_of(level: TraceLevel, *, is_archived: bool) -> Packing:
    """Return the packing of a trace of this level: small levels are always packed, others only in an archive."""
    if is_archived:
        return Packing.ARCHIVE
    return Packing.PLAIN if has_goals(level) else Packing.SMALL


class EqualityRule(StrEnum):
    """The rule by which two values of a column count as equal.

    equal: they are the same
    score: they differ at most by the tolerance of scores
    sum:   they are sums of scores, and differ at most by the tolerance that the steps of a candidate allow
    """

    EQUAL = "equal"
    SCORE = "score"
    SUM = "sum"


@dataclass(frozen=True)
class Column:
    """A dataset of a trace.

    path:        its group and its name, such as `steps/choice`
    dtypes:      the types that it may have, little-endian
    width:       the length of its second axis, or 0
    is_required: whether every trace must hold it if its level keeps it
    rows:        the level that gives its number of rows: a group, or its own path if it has a length of its own
    counts:      the level whose rows it counts, if it is a column of counts
    level:       the lowest level that keeps it
    stage:       the stage that produces its values
    rule:        its rule of equality
    codes:       the enumeration of its values
    is_identity: whether it is part of the identity of a candidate
    is_digested: whether the digests of steps count it
    of_search:   whether only searches with several paths have it, so that elsewhere it has no rows and is not missed
    """

    path: str
    dtypes: tuple[str, ...]
    width: int
    is_required: bool
    rows: str
    counts: str = ""
    level: TraceLevel = TraceLevel.DIGESTS
    stage: str = ""
    rule: EqualityRule = EqualityRule.EQUAL
    codes: type[IntEnum] | None = None
    is_identity: bool = False
    is_digested: bool = True
    of_search: bool = False

    @property
    def name(self) -> str:
        """The name in `Trace.fields`: `steps.choice`."""
        return self.path.replace("/", ".")

    @property
    def group(self) -> str:
        """The group of its record."""
        return self.path.partition("/")[0]

    @property
    def shape_text(self) -> str:
        """The shape in readable form."""
        return f"[n, {self.width}]" if self.width else "[n]"


def column(path: str, dtype: str, *, is_required: bool = True, rows: str = "", **facts: Any) -> Column:
    """Describe a column: `column("steps/choice", "<i4")`, `"<i4*3"` for rows of three, `"<f4 <f8"` for a choice of types.

    rows: as in `Column`; by default, the group
    """
    group = path.partition("/")[0]
    dtypes, _, width = dtype.partition("*")
    facts.setdefault("is_digested", facts.get("rule", EqualityRule.EQUAL) is EqualityRule.EQUAL)
    facts.setdefault("level", TraceLevel.STEPS if group in ("steps", "resolvents") else TraceLevel.DIGESTS)
    return Column(path, tuple(dtypes.split()), int(width or 0), is_required, rows or group, **facts)


def _own(path: str, dtype: str, *, is_required: bool = False) -> Column:
    return column(path, dtype, is_required=is_required, rows=path)


_FIRST: Final = (
    _own("header", "<u1", is_required=True),
    _own("symbols/predicates_bytes", "<u1", is_required=True),
    _own("symbols/predicates_offsets", "<u8", is_required=True),
    _own("symbols/constants_bytes", "<u1", is_required=True),
    _own("symbols/constants_offsets", "<u8", is_required=True),
)
_LAST: Final = (
    column(SEQUENCE, "<u8", is_required=False, rows="steps"),
    column("rankings/query", "<i4", is_required=False),
    column("rankings/side", "<i1", is_required=False, codes=Side),
    column("rankings/num_ranked", "<u4", is_required=False),
    column("rankings/optimistic", "<f8", is_required=False),
    column("rankings/pessimistic", "<f8", is_required=False),
    _own("program/facts", "<i4*3"),
    _own("program/fact_lines", "<i4"),
    _own("program/rule_atoms", "<i4*3"),
    _own("program/rule_lengths", "<u2"),
    _own("shard/index", "<u8"),
)
"""The datasets that traces of every kind of problem have: those before the schema's own columns, and those after."""


@dataclass(frozen=True)
class Schema:
    """The columns of one kind of problem.

    format:   the root attribute `format` of its files
    record:   the NamedTuple of its groups, each a NamedTuple of columns; it has `candidates`, with `num_steps`, and `steps`
    own:      its columns, group by group
    stages:   the stages of a step, in order; a difference is attributed to the earliest stage whose column differs
    together: the paths of columns that a file must hold all together or not at all

    Example:
        >>> from kgverify.trace.model.columns import KNOWLEDGE_GRAPH
        >>> KNOWLEDGE_GRAPH.column_of["steps/choice"].stage
        'choose'
    """

    format: str
    record: Any
    own: tuple[Column, ...]
    stages: tuple[str, ...] = ()
    together: tuple[tuple[str, ...], ...] = ()

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """Every dataset that a file may hold, in the order in which it is stored."""
        return *_FIRST, *self.own, *_LAST

    @cached_property
    def column_of(self) -> Mapping[str, Column]:
        """Every dataset by its path."""
        return {each.path: each for each in self.columns}

    @cached_property
    def groups(self) -> Mapping[str, Any]:
        """The record of each group."""
        return dict(self.record.__annotations__)

    @cached_property
    def counts(self) -> tuple[Column, ...]:
        """The columns of counts, each before the columns of the level that it counts."""
        return tuple(each for each in self.own if each.counts)

    @cached_property
    def compared(self) -> tuple[Column, ...]:
        """The columns that are compared: all except the outputs of stages."""
        return tuple(each for each in self.own if each.level is not TraceLevel.DEEP)

    @cached_property
    def compared_names(self) -> frozenset[str]:
        """The names of the compared columns, such as `steps.choice`, without those that only some searches have."""
        return frozenset(each.name for each in self.compared if not each.of_search)

    @cached_property
    def optional(self) -> frozenset[str]:
        """The names of the compared columns that a trace may lack."""
        return frozenset(each.name for each in self.compared if not each.is_required)

    @cached_property
    def mixed(self) -> tuple[str, ...]:
        """The paths of the columns that may have one of several types; the type is the same throughout a trace."""
        return tuple(each.path for each in self.own if len(each.dtypes) > 1)

    @cached_property
    def identity(self) -> tuple[str, ...]:
        """The columns that identify a candidate."""
        return tuple(each.path.partition("/")[2] for each in self.own if each.is_identity)

    @cached_property
    def deep(self) -> tuple[str, ...]:
        """The paths of the outputs of stages: a file holds all of them or none."""
        return tuple(each.path for each in self.own if each.level is TraceLevel.DEEP)

    @staticmethod
    def values(columns: Any, path: str) -> NDArray[Any]:
        """Return a column by its path, or by its name."""
        group, name = path.replace(".", "/").split("/")
        found: NDArray[Any] = getattr(getattr(columns, group), name)
        return found

    @staticmethod
    def replaced(columns: Any, path: str, values: NDArray[Any]) -> Any:
        """Return the columns with the values of one column replaced. The column is named by its path or its name."""
        group, name = path.replace(".", "/").split("/")
        return columns._replace(**{group: getattr(columns, group)._replace(**{name: values})})

    def absent(self, path: str, length: int) -> NDArray[Any]:
        """Return the stand-in for a column that a file does not hold: zeros for each row of its level, or no atoms."""
        field = self.column_of[path]
        length = 0 if field.of_search else length
        return np.zeros((0, field.width) if field.width else length, field.dtypes[-1])

    def build(self, rows: Mapping[str, Any], fetch: Callable[[str, Any], NDArray[Any]]) -> Any:
        """Build the columns from what `fetch` returns for each path and its rows; leave out groups that are not in `rows`.

        rows: the rows of each level
        """
        return self.record(
            **{
                group: kind(
                    *(fetch(path, rows[self.column_of[path].rows]) for path in (f"{group}/{n}" for n in kind._fields))
                )
                for group, kind in self.groups.items()
                if group in rows or self.column_of[f"{group}/{kind._fields[0]}"].of_search
            }
        )

    def find_rows(self, steps: Any, below: Callable[[str, Any], Any], *, has_stages: bool) -> dict[str, Any]:
        """Return the rows of each level that belong to some steps.

        below: a function that returns the rows counted by some rows of a column of counts
        """
        rows = {"steps": steps}
        for each in self.counts:
            if each.rows in rows and (has_stages or each.level is not TraceLevel.DEEP):
                rows[each.counts] = below(each.path, rows[each.rows])
        return rows

    def empty(self, dtypes: Mapping[str, np.dtype[Any]] | None = None) -> Any:
        """Return the columns of no candidates.

        dtypes: the types of columns that may have several; by default, the last one that a column may have
        """
        rows = dict.fromkeys((*self.groups, *(each.rows for each in self.own)), 0)
        empty = self.build(rows, self.absent)
        for path, dtype in (dtypes or {}).items():
            empty = self.replaced(empty, path, np.zeros(0, dtype))
        return empty

    def encode(self, columns: Any, absent: Iterable[str] = ()) -> Arrays:
        """Return the columns by path, without the absent ones, named as in `Trace.fields`.

        A column of searches is left out if it has no rows.
        """
        arrays: Arrays = {}
        for group, level in columns._asdict().items():
            of_group = encode_level(group, level)
            arrays |= {
                path: of_group[path] for path in of_group if len(of_group[path]) or not self.column_of[path].of_search
            }
        for name in absent:
            arrays.pop(name.replace(".", "/"), None)
        return arrays

    def decode(self, arrays: Arrays) -> Any:
        """Decode the datasets of a file; an absent column is zeros, and absent atoms and stages are empty."""
        rows = dict.fromkeys((each.rows for each in self.own), 0)
        rows |= self.num_rows({path: len(array) for path, array in arrays.items()})
        if self.deep and self.deep[0] not in arrays:
            del rows[self.column_of[self.deep[-1]].group]
        return self.build(rows, lambda path, length: arrays[path] if path in arrays else self.absent(path, length))

    @cached_property
    def _length_from(self) -> Mapping[str, list[str]]:
        """The datasets whose length gives the number of rows of each group: counts first."""
        ordered = sorted((each for each in self.columns), key=lambda each: not each.counts)
        return {group: [each.path for each in ordered if each.rows == group] for group in self.groups}

    def num_rows(self, lengths: Mapping[str, int]) -> dict[str, int]:
        """Return the number of rows of each group in a file with datasets of these lengths."""
        return {
            group: next((lengths[path] for path in paths if path in lengths), 0)
            for group, paths in self._length_from.items()
        }

    def count_rows(self, columns: Any) -> dict[str, int]:
        """Return the number of rows of each group of some columns."""
        return {group: len(self.values(columns, paths[0])) for group, paths in self._length_from.items() if paths}

    @cached_property
    def _left_out(self) -> Mapping[TraceLevel, frozenset[str]]:
        return {
            level: frozenset(each.path for each in self.own if _LEVELS.index(each.level) > number)
            for number, level in enumerate(_LEVELS)
        }

    def left_out(self, level: TraceLevel) -> frozenset[str]:
        """Return the paths of the datasets that a trace of this level must not hold."""
        return self._left_out[level]

    def required(self, level: TraceLevel) -> frozenset[str]:
        """Return the paths of the datasets that a trace of this level must hold."""
        always = {each.path for each in self.columns if each.is_required}
        if not has_goals(level):
            always.add(SEQUENCE)
        return frozenset(always.union(self.deep) - self._left_out[level])

    def is_kept(self, path: str, level: TraceLevel) -> bool:
        """Return whether this level keeps the dataset. Level `digests` leaves out the program, which the header identifies."""
        if path in self._left_out[level]:
            return False
        return level is not TraceLevel.DIGESTS or not path.startswith("program/")

    def columns_kept(self, level: TraceLevel) -> frozenset[str]:
        """Return the names of the compared columns that this level can hold, without those that only some searches have."""
        return self.compared_names - {path.replace("/", ".") for path in self._left_out[level]}

    def missing(self, path: str, where: str) -> UserError:
        """Return the error for a file that lacks a dataset."""
        return UserError(
            f"missing, expected a dataset of {' or '.join(np.dtype(d).name for d in self.column_of[path].dtypes)}",
            where=f"{where}:{path}",
            fix="write every dataset that docs/traces.md requires at this level",
        )

    def check_level(self, arrays: Collection[str], level: TraceLevel, where: str, *, is_piece: bool = False) -> None:
        """Raise a UserError unless a file holds all datasets that its level requires, and none that its level leaves out.

        arrays:   the paths of its datasets
        is_piece: whether it is a piece of a recording and need not hold the symbols, which are in the first file
        """
        if odd := self._left_out[level].intersection(arrays):
            raise UserError(
                f"found, but the level is {str(level)!r}, which leaves it out",
                where=f"{where}:{min(odd)}",
                fix="leave it out, or name the level whose datasets these are",
            )
        needed = {path for path in self.required(level) if not (is_piece and path.startswith("symbols/"))}
        if missing := [path for path in self.column_of if path in needed.difference(arrays)]:
            raise self.missing(missing[0], where)
        rankings = tuple(path for path in self.column_of if path.startswith("rankings/"))
        for group in (*self.together, ("program/rule_atoms", "program/rule_lengths"), rankings):
            held = [path for path in group if path in arrays]
            if held and len(held) < len(group):
                raise UserError(
                    f"missing, while {held[0]} is there",
                    where=f"{where}:{next(path for path in group if path not in arrays)}",
                    fix=f"write all of {', '.join(group)}, or none",
                )


def encode_level(group: str, level: Any) -> Arrays:
    """Return the columns of a NamedTuple, by path."""
    return {f"{group}/{name}": values for name, values in level._asdict().items()}


def file_checksum(checksums: Mapping[str, int]) -> int:
    """Return the xxh3 checksum of the paths and checksums of all datasets, in ascending order of paths."""
    content = b"".join(path.encode() + b"\0" + checksums[path].to_bytes(8, "little") for path in sorted(checksums))
    return xxhash.xxh3_64_intdigest(content)


def check_file_checksum(checksums: Mapping[str, int], stored: int, where: str) -> None:
    """Raise a UserError unless the file holds exactly the datasets with which it was written."""
    found = file_checksum(checksums)
    if found != stored:
        raise UserError(
            f"the root attribute `xxh3` is {stored:016x}, expected {found:016x} from the datasets found:"
            " one was renamed, removed or added",
            where=where,
            fix=RECORD_AGAIN,
        )
