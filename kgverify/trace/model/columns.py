"""A trace in memory: ragged columns, flat arrays plus counts, never padded.

Axis letters: N candidates, T steps, R resolvents, G atoms of goals, M atoms of resolvents, Q rankings, I items that stages
gave, K atoms of these items.
An atom with a negative predicate is a hole: a place that was counted and not filled. Ids that no name has are kept.
Candidates are in order; the steps of candidate i follow those of candidate i - 1; and so on down each level.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray


class CandidateSet(NamedTuple):
    """Triples to be proved, in the order in which they are to be reported.

    query: int32 [N]     index of the query in its split
    side:  int8  [N]     a `Side`
    atom:  int32 [N, 3]  predicate, first, second; a variable v is -1 - v
    """

    query: NDArray[np.int32]
    side: NDArray[np.int8]
    atom: NDArray[np.int32]

    @property
    def num_candidates(self) -> int:
        """The number of candidates."""
        return len(self.query)

    def take(self, rows: NDArray[np.integer] | slice) -> "CandidateSet":
        """Return the given candidates."""
        return CandidateSet(self.query[rows], self.side[rows], self.atom[rows])


class Candidates(NamedTuple):
    """The candidates that were to be proved, and their outcomes.

    query:           int32   [N]     index of the query (the test triple) in its split
    side:            int8    [N]     a `Side`: which argument was replaced
    atom:            int32   [N, 3]  predicate, first, second; a variable v is -1 - v
    num_steps:       uint32  [N]     steps recorded
    outcome:         int8    [N]     an `Outcome`
    is_limited:      uint8   [N]     1 if a limit dropped anything in the derivation
    log_probability: float64 [N]     sum of the log-softmax of the choices, in nats
    """

    query: NDArray[np.int32]
    side: NDArray[np.int8]
    atom: NDArray[np.int32]
    num_steps: NDArray[np.uint32]
    outcome: NDArray[np.int8]
    is_limited: NDArray[np.uint8]
    log_probability: NDArray[np.float64]


class Steps(NamedTuple):
    """The steps, one row each: the goal, the choice, the outcome.

    depth:              uint16 [T]     steps taken before this one
    num_atoms:          uint16 [T]     atoms of the goal
    num_resolvents:     uint32 [T]     resolvents left after `limit`
    dropped_atoms:      uint32 [T]     resolvents dropped for more than `max_atoms` atoms
    dropped_resolvents: uint32 [T]     resolvents dropped beyond `max_resolvents`
    choice:             int32  [T]     index of the chosen resolvent in the step
    outcome:            int8   [T]     an `Outcome`, after the step
    goal_atoms:         int32  [G, 3]  the atoms of the goals, one goal after the other
    """

    depth: NDArray[np.uint16]
    num_atoms: NDArray[np.uint16]
    num_resolvents: NDArray[np.uint32]
    dropped_atoms: NDArray[np.uint32]
    dropped_resolvents: NDArray[np.uint32]
    choice: NDArray[np.int32]
    outcome: NDArray[np.int8]
    goal_atoms: NDArray[np.int32]


class Resolvents(NamedTuple):
    """The resolvents from which each step could choose, after `limit`.

    kind:        uint8  [R]     a `GoalKind`; one that is not GOAL has no atoms unless the engine left some by mistake
    num_atoms:   uint16 [R]
    origin_kind: uint8  [R]     an `Origin`
    origin:      int32  [R]     index of the rule, or of the fact, that made it; 0 without one
    score:       float32 or float64 [R]
    atoms:       int32  [M, 3]
    """

    kind: NDArray[np.uint8]
    num_atoms: NDArray[np.uint16]
    origin_kind: NDArray[np.uint8]
    origin: NDArray[np.int32]
    score: NDArray[np.float32] | NDArray[np.float64]
    atoms: NDArray[np.int32]


class Rankings(NamedTuple):
    """The rank of the true candidate among its corruptions, one row for each query and side.

    query:       int32 [Q]
    side:        int8  [Q]
    num_ranked:  uint32 [Q]  candidates ranked, the true one included
    optimistic:  float64 [Q]
    pessimistic: float64 [Q]
    """

    query: NDArray[np.int32]
    side: NDArray[np.int8]
    num_ranked: NDArray[np.uint32]
    optimistic: NDArray[np.float64]
    pessimistic: NDArray[np.float64]


class Digests(NamedTuple):
    """Three digests of each step (see `kgverify.trace.model.digests`).

    sequence: uint64 [T]  of everything, in order
    multiset: uint64 [T]  blind to the order of the resolvents
    renaming: uint64 [T]  blind to how variables are numbered
    """

    sequence: NDArray[np.uint64]
    multiset: NDArray[np.uint64]
    renaming: NDArray[np.uint64]


NO_DIGESTS: Final = Digests(*(np.zeros(0, np.uint64) for _ in Digests._fields))
"""The digests of no steps."""
LABELS: Final = "candidates/is_true"
"""An optional dataset: 1 where a candidate is the true triple of its query, else 0."""
Range = tuple[int, int]
"""The first of some rows that follow each other, and the row after the last."""


class StageItems(NamedTuple):
    """The output of each stage of each step, item by item; all empty if it was not recorded (see `stage_items`).

    told:        uint16  [T]     bit n - 1 is set where the output of stage number n is known
    num_items:   uint32  [T]     items of the step
    stage:       uint8   [I]     number of the stage, from 1, `select`, to 13, `finish`; ascending within a step
    kind:        uint8   [I]     a `GoalKind`
    origin_kind: uint8   [I]     an `Origin`
    origin:      int32   [I]     index of the rule or fact; 0 without one
    number:      float64 [I]     output of `score`, `choose`, `advance`, `finish`: score, index, depth, outcome; else 0
    num_atoms:   uint16  [I]
    atoms:       int32   [K, 3]  one with a negative predicate is no atom
    """

    told: NDArray[np.uint16]
    num_items: NDArray[np.uint32]
    stage: NDArray[np.uint8]
    kind: NDArray[np.uint8]
    origin_kind: NDArray[np.uint8]
    origin: NDArray[np.int32]
    number: NDArray[np.float64]
    num_atoms: NDArray[np.uint16]
    atoms: NDArray[np.int32]


@dataclass(frozen=True)
class Field:
    """A dataset: its path, the types it may have (little-endian), the length of its second axis or 0."""

    path: str
    dtypes: tuple[str, ...]
    width: int = 0
    is_required: bool = True

    @property
    def name(self) -> str:
        """The name in `Trace.fields`: `steps.choice`."""
        return self.path.replace("/", ".")

    @property
    def rows(self) -> str:
        """The level whose rows it has: a group, or its own path if it has a length of its own."""
        group, _, column = self.path.partition("/")
        if group == "digests" or self.path in PER_STEP:
            return "steps"
        return group if column and self.path not in RAGGED and group in {*GROUPS, "rankings"} else self.path

    @property
    def shape_text(self) -> str:
        """The shape as a person reads it."""
        return f"[n, {self.width}]" if self.width else "[n]"


def _fields(group: str, is_required: bool = True, **dtypes: str) -> tuple[Field, ...]:
    return tuple(
        Field(f"{group}/{name}", (dtype.removesuffix("*3"),), 3 * dtype.endswith("*3"), is_required)
        for name, dtype in dtypes.items()
    )


FIELDS: Final = (
    Field("header", ("<u1",)),
    *_fields("symbols", predicates_bytes="<u1", predicates_offsets="<u8"),
    *_fields("symbols", constants_bytes="<u1", constants_offsets="<u8"),
    *_fields("candidates", query="<i4", side="<i1", atom="<i4*3", num_steps="<u4"),
    *_fields("candidates", False, outcome="<i1", is_limited="<u1", log_probability="<f8"),
    *_fields("steps", False, depth="<u2"),
    *_fields("steps", num_atoms="<u2", num_resolvents="<u4"),
    *_fields("steps", False, dropped_atoms="<u4", dropped_resolvents="<u4", choice="<i4", outcome="<i1"),
    *_fields("steps", goal_atoms="<i4*3"),
    *_fields("resolvents", kind="<u1", num_atoms="<u2"),
    *_fields("resolvents", False, origin_kind="<u1", origin="<i4"),
    Field("resolvents/score", ("<f4", "<f8"), is_required=False),
    *_fields("resolvents", atoms="<i4*3"),
    *_fields("stages", False, told="<u2", num_items="<u4", stage="<u1", kind="<u1", origin_kind="<u1", origin="<i4"),
    *_fields("stages", False, number="<f8", num_atoms="<u2", atoms="<i4*3"),
    *_fields("digests", False, sequence="<u8"),
    *_fields("rankings", False, query="<i4", side="<i1", num_ranked="<u4"),
    *_fields("rankings", False, optimistic="<f8", pessimistic="<f8"),
    *_fields("program", False, facts="<i4*3", fact_lines="<i4", rule_atoms="<i4*3", rule_lengths="<u2"),
    *_fields("shard", False, index="<u8"),
)

FIELD_OF: Final[Mapping[str, Field]] = {field.path: field for field in FIELDS}


def absent_column(path: str, length: int) -> NDArray[Any]:
    """Return the stand-in for a dataset that a file does not hold: zeros for each row of its level, or no atoms."""
    field = FIELD_OF[path]
    return np.zeros((0, field.width) if field.width else length, field.dtypes[-1])


def no_stage_items(num_steps: int = 0) -> StageItems:
    """Return the items of steps whose stages' outputs are all unknown."""
    return StageItems(
        *(
            absent_column(f"stages/{name}", num_steps if name in ("told", "num_items") else 0)
            for name in StageItems._fields
        )
    )


class Columns(NamedTuple):
    """The candidates of a run with all their steps, and the outputs of the stages if those were recorded."""

    candidates: Candidates
    steps: Steps
    resolvents: Resolvents
    stages: StageItems = no_stage_items()


StepBatch: TypeAlias = tuple[Columns, NDArray[np.uint64] | None]
"""Candidates with their steps, and the sequence digests of the steps if they were computed elsewhere."""


GROUPS: Final[Mapping[str, Any]] = {
    "candidates": Candidates,
    "steps": Steps,
    "resolvents": Resolvents,
    "stages": StageItems,
}
"""The groups of datasets that make `Columns`, in its order."""

COUNTS: Final = {
    "candidates/num_steps": "steps/num_atoms",
    "steps/num_resolvents": "resolvents/num_atoms",
    "steps/num_atoms": "steps/goal_atoms",
    "resolvents/num_atoms": "resolvents/atoms",
}
"""Each column of counts, and the level or the ragged column whose rows it counts."""

STAGE_COUNTS: Final = {"stages/num_items": "stages/stage", "stages/num_atoms": "stages/atoms"}
"""The same for the outputs of the stages, which are not compared by columns."""

RAGGED: Final = ("steps/goal_atoms", "resolvents/atoms", "stages/atoms")
PER_STEP: Final = ("stages/told", "stages/num_items")


def empty_columns(score_dtype: type[np.floating] = np.float64) -> Columns:
    """Return the columns of no candidates."""
    columns = build_columns(dict.fromkeys((*GROUPS, *RAGGED, *PER_STEP), 0), absent_column)
    return columns._replace(resolvents=columns.resolvents._replace(score=np.zeros(0, score_dtype)))


def build_columns(rows: Mapping[str, Any], fetch: Callable[[str, Any], NDArray[Any]]) -> Columns:
    """Return the columns that `fetch` returns for a path and its rows, without outputs of stages if these have no rows.

    rows: the rows of each group, or of a dataset where they differ
    """
    return Columns(
        *(
            kind(*(fetch(path, rows.get(path, rows[group])) for path in (f"{group}/{n}" for n in kind._fields)))
            for group, kind in GROUPS.items()
            if group in rows
        )
    )


def find_rows(steps: Any, below: Callable[[str, Any], Any], *, has_stages: bool) -> dict[str, Any]:
    """Return the rows of each group, or of a dataset where they differ, that belong to some steps.

    below: returns the rows that rows of a column of counts count
    """
    resolvents = below("steps/num_resolvents", steps)
    rows = {"steps": steps, "resolvents": resolvents, "steps/goal_atoms": below("steps/num_atoms", steps)}
    rows["resolvents/atoms"] = below("resolvents/num_atoms", resolvents)
    if has_stages:
        rows["stages"] = items = below("stages/num_items", steps)
        rows |= dict.fromkeys(PER_STEP, steps) | {"stages/atoms": below("stages/num_atoms", items)}
    return rows


def concatenate(parts: Sequence[Columns]) -> Columns:
    """Concatenate columns; no parts give empty columns."""
    if not parts:
        return empty_columns()
    return parts[0] if len(parts) == 1 else Columns(*map(_join, zip(*parts, strict=True)))


def join_candidates(parts: Sequence[Candidates]) -> Candidates:
    """Concatenate candidates; no parts give no candidates."""
    return _join(parts) if parts else empty_columns().candidates


def _join(levels: Sequence[Any]) -> Any:
    return type(levels[0])(*map(np.concatenate, zip(*levels, strict=True)))


def are_equal(first: Sequence[Any], second: Sequence[Any], *, equal_nan: bool = False) -> bool:
    """Return whether arrays, or sequences of them such as `Columns`, are equal in every element, without any tolerance.

    Arrays of different types are unequal, except floats of different precision.
    """
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        is_float = first.dtype.kind == second.dtype.kind == "f"
        if not is_float and first.dtype != second.dtype:
            return False
        if is_float and equal_nan:
            return np.array_equal(first, second, equal_nan=True)
        # On small arrays, numpy's function takes three times as long.
        return first.shape == second.shape and bool((first == second).all())
    return len(first) == len(second) and all(map(partial(are_equal, equal_nan=equal_nan), first, second))


def starts_of(counts: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return int64 [n + 1], the offset of each of n ragged rows; the last entry is the end of the last row."""
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def cut_rows(starts: NDArray[np.int64], most: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of ragged rows, one after the other, with at most `most` elements, or of a single row."""
    begin = 0
    while begin < len(starts) - 1:
        end = find_end(starts, begin, most)
        yield begin, end
        begin = end


def find_end(starts: NDArray[np.int64], begin: int, most: int) -> int:
    """Return the end of the range of ragged rows from `begin` that has at most `most` elements, or is a single row."""
    return max(begin + 1, int(np.searchsorted(starts, starts[begin] + most, "right")) - 1)


def count_where(mask: NDArray[np.bool_], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count the elements of each of n ragged rows for which the mask holds: int64 [n]."""
    return np.diff(np.searchsorted(np.flatnonzero(mask), starts))


def are_neighbours(rows: NDArray[np.int64]) -> bool:
    """Return whether rows follow each other without a gap."""
    return bool(len(rows)) and int(rows[-1]) - int(rows[0]) == len(rows) - 1 and bool((np.diff(rows) == 1).all())


def expand_rows(starts: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the element indices of the given ragged rows, one row after the other."""
    first, length = starts[rows], starts[rows + 1] - starts[rows]
    ends = np.cumsum(length)
    total = int(ends[-1]) if len(ends) else 0
    elements: NDArray[np.int64] = np.arange(total) + np.repeat(first - (ends - length), length)
    return elements


def select_candidates(columns: Columns, rows: NDArray[np.integer]) -> Columns:
    """Return the given candidates with their steps, in the given order."""
    chosen: NDArray[np.int64] = np.asarray(rows, np.int64)
    steps = expand_rows(starts_of(columns.candidates.num_steps), chosen)
    every: Any = columns.candidates
    candidates = Candidates(*(column[chosen] for column in every))
    return select_steps(columns, steps)._replace(candidates=candidates)


def select_steps(columns: Columns, rows: NDArray[np.int64]) -> Columns:
    """Return the given steps with their resolvents, in the given order; the candidates stay as they are."""

    def column(path: str) -> NDArray[Any]:
        group, name = path.split("/")
        found: NDArray[Any] = getattr(getattr(columns, group), name)
        return found

    def below(path: str, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        return expand_rows(starts_of(column(path)), chosen)

    found = find_rows(rows, below, has_stages=len(columns.stages.told) > 0) | {"candidates": slice(None)}
    selected = build_columns(found, lambda path, chosen: column(path)[chosen])
    return selected if "stages" in found else selected._replace(stages=columns.stages)
