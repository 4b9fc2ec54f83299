"""A trace in memory: ragged columns, stored as flat arrays and counts, without padding.

Axis letters: N candidates, T steps, R resolvents, G atoms of goals, M atoms of resolvents, Q rankings, I output items of
stages, K atoms of these items.
An atom with a negative predicate is a hole: it was counted but never filled in. Ids without a name are kept.
Candidates are in order; the steps of candidate i follow those of candidate i - 1; and so on at each level.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from kgverify.program.outcomes import GoalKind, Origin, Outcome, Side, Stage
from kgverify.trace.model.schema import FORMAT, Column, EqualityRule, Schema, TraceLevel, column

_Columns = TypeVar("_Columns")
"""The type of a schema's record, such as `Columns`."""


class CandidateSet(NamedTuple):
    """Triples to be proved, in the order of their reports.

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
    """The candidates to be proved, and their outcomes.

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


STEP_COLUMNS: Final = Steps._fields[: Steps._fields.index("goal_atoms") + 1]
"""The columns of steps that kgverify's own engines record, in their order."""


class Resolvents(NamedTuple):
    """The resolvents from which each step could choose, after `limit`.

    kind:        uint8  [R]     a `GoalKind`; only GOAL has atoms, unless the engine left some by mistake
    num_atoms:   uint16 [R]
    origin_kind: uint8  [R]     an `Origin`
    origin:      int32  [R]     index of the rule, or of the fact, that made it; 0 without a clause
    score:       float32 or float64 [R]
    atoms:       int32  [M, 3]
    """

    kind: NDArray[np.uint8]
    num_atoms: NDArray[np.uint16]
    origin_kind: NDArray[np.uint8]
    origin: NDArray[np.int32]
    score: NDArray[np.float32] | NDArray[np.float64]
    atoms: NDArray[np.int32]


UNKNOWN: Final = 1 << 31
"""The number of ranked candidates of a ranking that does not tell it."""


class Rankings(NamedTuple):
    """The rank of the true candidate among its corruptions, one row for each query and side.

    query:       int32 [Q]
    side:        int8  [Q]
    num_ranked:  uint32 [Q]  candidates ranked, the true one included; `UNKNOWN` if only ranks are known
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

    sequence: uint64 [T]  covers everything, in order
    multiset: uint64 [T]  ignores the order of the resolvents
    renaming: uint64 [T]  ignores how variables are numbered
    """

    sequence: NDArray[np.uint64]
    multiset: NDArray[np.uint64]
    renaming: NDArray[np.uint64]


NO_DIGESTS: Final = Digests(*(np.zeros(0, np.uint64) for _ in Digests._fields))
"""The digests of no steps."""
LABELS: Final = "candidates/is_true"
"""An optional dataset: 1 if a candidate is the true triple of its query, else 0."""
Range = tuple[int, int]
"""A range of consecutive rows: the first one, and the one after the last."""


class StageItems(NamedTuple):
    """The output of each stage of each step, item by item; all empty if it was not recorded (see `stage_items`).

    told:        uint16  [T]     bit n - 1 is set if the output of stage number n is known
    num_items:   uint32  [T]     items of the step
    stage:       uint8   [I]     number of the stage, from 1, `select`, to 13, `finish`; ascending within a step
    kind:        uint8   [I]     a `GoalKind`
    origin_kind: uint8   [I]     an `Origin`
    origin:      int32   [I]     index of the rule or fact; 0 without a clause
    number:      float64 [I]     output of `score`, `choose`, `advance`, `finish`: score, index, depth, outcome; else 0
    num_atoms:   uint16  [I]
    atoms:       int32   [K, 3]  a negative predicate marks a row that is not an atom
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


_STAGES: Final = tuple(
    column(f"stages/{name}", dtype, is_required=False, level=TraceLevel.DEEP, **facts)
    for name, dtype, facts in (
        ("told", "<u2", {"rows": "steps"}),
        ("num_items", "<u4", {"rows": "steps", "counts": "stages"}),
        ("stage", "<u1", {}),
        ("kind", "<u1", {"codes": GoalKind}),
        ("origin_kind", "<u1", {"codes": Origin}),
        ("origin", "<i4", {}),
        ("number", "<f8", {}),
        ("num_atoms", "<u2", {"counts": "stages/atoms"}),
        ("atoms", "<i4*3", {"rows": "stages/atoms"}),
    )
)


def no_stage_items(num_steps: int = 0) -> StageItems:
    """Return the items of steps whose stage outputs are all unknown."""
    shapes = ((num_steps if each.rows == "steps" else 0, *[3] * bool(each.width)) for each in _STAGES)
    return StageItems(*(np.zeros(shape, each.dtypes[0]) for shape, each in zip(shapes, _STAGES, strict=True)))


class Paths(NamedTuple):
    """The paths of a search with several paths; all empty in other runs. A step is the expansion of one path.

    The steps of a candidate ascend by level and place.

    level:           int32   [T]  steps that the path has taken before, whether its depth counts them or not
    place:           int32   [T]  of the path in its beam
    parent:          int32   [T]  place of the path, in the level before, from which it comes; -1 in the first level
    log_probability: float64 [T]  of the path before the step, in nats
    child:           int32   [R]  place that a resolvent got; -1 if it was not kept, -2 - p if it was merged into place p
    child_log_probability: float64 [R]  of a resolvent that was kept, after merging, or that was merged; else 0
    """

    level: NDArray[np.int32]
    place: NDArray[np.int32]
    parent: NDArray[np.int32]
    log_probability: NDArray[np.float64]
    child: NDArray[np.int32]
    child_log_probability: NDArray[np.float64]


_NOTHING: Final = np.zeros(0, np.int32)

NO_PATHS: Final = Paths(_NOTHING, _NOTHING, _NOTHING, np.zeros(0), _NOTHING, np.zeros(0))
"""The paths of a run that follows a single derivation of each candidate."""

PATHS: Final = frozenset(f"paths.{name}" for name in Paths._fields)
"""The columns that only a search with several paths has."""


class Columns(NamedTuple):
    """The candidates of a run with all their steps, their paths, and the outputs of the stages if they were recorded."""

    candidates: Candidates
    steps: Steps
    resolvents: Resolvents
    stages: StageItems = no_stage_items()
    paths: Paths = NO_PATHS


StepBatch: TypeAlias = tuple[Columns, NDArray[np.uint64] | None]
"""Candidates with their steps, and the sequence digests of the steps if they were computed elsewhere."""


def _optional(path: str, dtype: str, stage: Stage, **facts: Any) -> Column:
    return column(path, dtype, is_required=False, stage=stage, **facts)


def _of_path(name: str, dtype: str, stage: Stage, rows: str = "steps", **facts: Any) -> Column:
    return _optional(
        f"paths/{name}", dtype, stage, rows=rows, level=TraceLevel.STEPS, is_digested=False, of_search=True, **facts
    )


KNOWLEDGE_GRAPH: Final = Schema(
    FORMAT,
    Columns,
    (
        column("candidates/query", "<i4", is_identity=True),
        column("candidates/side", "<i1", is_identity=True, codes=Side),
        column("candidates/atom", "<i4*3", is_identity=True),
        column("candidates/num_steps", "<u4", counts="steps", stage=Stage.RECYCLE),
        _optional("candidates/outcome", "<i1", Stage.FINISH, codes=Outcome),
        _optional("candidates/is_limited", "<u1", Stage.LIMIT),
        _optional("candidates/log_probability", "<f8", Stage.FINISH, rule=EqualityRule.SUM, level=TraceLevel.STEPS),
        _optional("steps/depth", "<u2", Stage.ADVANCE),
        column("steps/num_atoms", "<u2", counts="steps/goal_atoms", stage=Stage.ADVANCE),
        column("steps/num_resolvents", "<u4", counts="resolvents", stage=Stage.RESOLVE),
        _optional("steps/dropped_atoms", "<u4", Stage.LIMIT),
        _optional("steps/dropped_resolvents", "<u4", Stage.LIMIT),
        _optional("steps/choice", "<i4", Stage.CHOOSE),
        _optional("steps/outcome", "<i1", Stage.FINISH, codes=Outcome),
        column("steps/goal_atoms", "<i4*3", rows="steps/goal_atoms", stage=Stage.ADVANCE),
        column("resolvents/kind", "<u1", stage=Stage.RESOLVE, codes=GoalKind),
        column("resolvents/num_atoms", "<u2", counts="resolvents/atoms", stage=Stage.RESOLVE),
        _optional("resolvents/origin_kind", "<u1", Stage.MATCH_RULES, codes=Origin, is_digested=False),
        _optional("resolvents/origin", "<i4", Stage.MATCH_RULES, is_digested=False),
        _optional("resolvents/score", "<f4 <f8", Stage.SCORE, rule=EqualityRule.SCORE),
        column("resolvents/atoms", "<i4*3", rows="resolvents/atoms", stage=Stage.RESOLVE),
        _of_path("level", "<i4", Stage.RECYCLE),
        _of_path("place", "<i4", Stage.TOP_K),
        _of_path("parent", "<i4", Stage.TOP_K),
        _of_path("log_probability", "<f8", Stage.EXPAND, rule=EqualityRule.SUM),
        _of_path("child", "<i4", Stage.TOP_K, rows="resolvents"),
        _of_path("child_log_probability", "<f8", Stage.EXPAND, rows="resolvents", rule=EqualityRule.SUM),
        *_STAGES,
    ),
    stages=tuple(Stage),
    together=(
        ("resolvents/origin_kind", "resolvents/origin"),
        ("steps/dropped_atoms", "steps/dropped_resolvents"),
        ("paths/level", "paths/place", "paths/parent", "paths/child"),
    ),
)
"""The schema of derivations in knowledge graphs."""

FIELD_OF: Final[Mapping[str, Column]] = {
    **KNOWLEDGE_GRAPH.column_of,
    LABELS: column(LABELS, "<u1", is_required=False),
}
"""The columns of this schema by path."""


def empty_columns(score_dtype: type[np.floating] = np.float64) -> Columns:
    """Return the columns of no candidates."""
    columns: Columns = KNOWLEDGE_GRAPH.empty({"resolvents/score": np.dtype(score_dtype)})
    return columns


def concatenate(parts: Sequence[Columns]) -> Columns:
    """Concatenate columns; without parts, return empty columns."""
    if not parts:
        return empty_columns()
    return parts[0] if len(parts) == 1 else type(parts[0])(*map(_join, zip(*parts, strict=True)))


def join_candidates(parts: Sequence[Candidates]) -> Candidates:
    """Concatenate candidates; without parts, return an empty set."""
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


def number_rows(*tables: Sequence[NDArray[np.integer]]) -> list[NDArray[np.int64]]:
    """Return a number for each row of some tables of columns: equal for equal rows only, and in the order of the rows."""
    columns = [np.concatenate(parts).astype(np.int64) for parts in zip(*tables, strict=True)]
    numbers, num_all = np.zeros(len(columns[0]), np.int64), 1
    for values in columns if len(numbers) else ():
        low = int(values.min())
        num = int(values.max()) - low + 1
        if num_all * num >= 1 << 63:
            # Number the rows of the columns so far without gaps.
            numbers, width = np.unique(numbers, return_inverse=True)[1], len(numbers)
            values, num, low, num_all = np.unique(values, return_inverse=True)[1], width, 0, width
        numbers = numbers * num + (values - low)
        num_all *= num
    ends = np.cumsum([len(table[0]) for table in tables])
    return np.split(numbers, ends[:-1])


def mark_rows(table: Sequence[NDArray[np.integer]], others: Sequence[NDArray[np.integer]]) -> NDArray[np.bool_]:
    """Return a mask of the rows of a table of columns that are also rows of another one."""
    left, right = number_rows(table, others)
    return np.isin(left, right)


def starts_of(counts: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return int64 [n + 1], the offset of each of n ragged rows; the last entry is the end of the last row."""
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def cut_rows(starts: NDArray[np.int64], most: int) -> Iterator[tuple[int, int]]:
    """Yield consecutive ranges of ragged rows; each has at most `most` elements, or is a single row."""
    begin = 0
    while begin < len(starts) - 1:
        end = find_end(starts, begin, most)
        yield begin, end
        begin = end


def find_end(starts: NDArray[np.int64], begin: int, most: int) -> int:
    """Return the end of the range of ragged rows that starts at `begin` and has at most `most` elements, or is one row."""
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


def select_candidates(columns: _Columns, rows: NDArray[np.integer], schema: Schema = KNOWLEDGE_GRAPH) -> _Columns:
    """Return the given candidates with their steps, in the given order."""
    chosen: NDArray[np.int64] = np.asarray(rows, np.int64)
    every: Any = columns
    candidates = type(every.candidates)(*(values[chosen] for values in every.candidates))
    steps = expand_rows(starts_of(every.candidates.num_steps), chosen)
    selected: _Columns = select_steps(every, steps, schema)._replace(candidates=candidates)
    return selected


def select_steps(columns: _Columns, rows: NDArray[np.int64], schema: Schema = KNOWLEDGE_GRAPH) -> _Columns:
    """Return the given steps with the rows below them, in the given order; the candidates stay as they are."""

    def below(path: str, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        return expand_rows(starts_of(schema.values(columns, path)), chosen)

    has_stages = bool(schema.deep) and len(schema.values(columns, schema.deep[0])) > 0
    found = schema.find_rows(rows, below, has_stages=has_stages) | {"candidates": slice(None)}

    def take(path: str, chosen: Any) -> NDArray[Any]:
        values = schema.values(columns, path)
        return values[chosen] if len(values) else values

    selected: _Columns = schema.build(found, take)
    return selected
