"""Compare two trajectories: rounding is made equal first, then the one comparer of columns finds the first rows that differ."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.compare import KEPT, Comparer, Options
from kgverify.comparison.result import Comparison, Divergence, NearTie
from kgverify.environments.locate import RowReader, locate
from kgverify.environments.rows import MOST_WINDOWS, Window, show_rows
from kgverify.environments.side import Side
from kgverify.environments.trajectory import (
    ENVIRONMENT,
    GROUPS,
    StepKind,
    Trajectories,
    cut_at_actions,
    without_numbers,
)
from kgverify.errors import count_of
from kgverify.program.program import Symbols
from kgverify.trace.model.columns import concatenate, expand_rows, select_candidates, starts_of
from kgverify.trace.model.trace import Trace
from kgverify.verification.planted_changes import plant_changes

ULPS: Final = 4
"""The units in the last place of the largest value of a number that count as rounding, if no bound was measured."""

MOST_GROWN: Final = 1 << 12
"""The factor by which a number may exceed the bound if rounding grew: in the step before, it was still within the bound."""

SCALARS: Final = ("reward", "log_probability", "value")
"""The columns of steps that rounding may change."""

BEYOND_MEASURED: Final = 8
"""The factor by which a difference may exceed the change that one unit in the last place of the state makes."""


class Rounding(NamedTuple):
    """The differences that count as rounding: how many numbers, and the largest in units of the bound.

    grown: bool [T]  the expected rows that differ by little more than rounding, right after a row that differs by rounding
    """

    num: int
    largest: float
    is_measured: bool
    grown: NDArray[np.bool_]

    def describe(self) -> str:
        """Describe it in words; empty if no number differs by rounding."""
        if not self.num:
            return ""
        how = "measured by changing the state in the last place" if self.is_measured else "derived from the float types"
        return f"{count_of(self.num, 'number')} differ by rounding, at most by {self.largest:.2g} of the bound, {how}"


class Compared(NamedTuple):
    """The result of comparing two sides.

    readers: both sides as they were compared, row by row
    drifts:  the differences of slots in which rounding grew step by step; they are not divergences
    windows: the rows around the first divergences
    sides:   both sides as they were recorded
    """

    comparison: Comparison
    rounding: Rounding
    readers: tuple[RowReader, RowReader]
    drifts: tuple[Divergence, ...] = ()
    windows: tuple[Window, ...] = ()
    sides: tuple[Side, ...] = ()


def compare_sides(
    expected: Side,
    actual: Side,
    perturbed: Sequence[Side] = (),
    *,
    tolerance: float | None = None,
    lockstep: bool = False,
) -> Compared:
    """Compare two sides that took the same actions, and name the stage of each first difference.

    perturbed: the expected side, taken again from states that are changed in the last place; only in lockstep
    tolerance: the relative difference of two floats that counts as rounding; None for a derived one
    """
    both = [_keep(side, expected.columns_known & actual.columns_known) for side in (expected, actual, *perturbed)]
    if lockstep:
        both = [replace(side, columns=cut_at_actions(side.columns)) for side in both]
    left, right, *others = both
    right, ties = _adopt_ties(left, right, others)
    right, rounding = _adopt_rounded(left, right, others, tolerance)
    options = Options(lockstep=lockstep, kept=KEPT, infers=False)
    lacking = (expected.columns_known ^ actual.columns_known) | (ENVIRONMENT.compared_names - expected.columns_known)
    comparer = Comparer(_without_symbols(left, lacking), _without_symbols(right, lacking), options)
    found = comparer.compare()
    found = msgspec.structs.replace(found, self_test=plant_changes([comparer]), notes=())
    readers = RowReader(left), RowReader(right)

    def drifts(each: Divergence) -> bool:
        row = readers[0].first[each.candidate] + each.step
        return not lockstep and each.step >= 0 and bool(rounding.grown[row])

    located = list(zip(found.divergences, locate(found.divergences, *readers), strict=True))
    kept = [pair for pair in located if not drifts(pair[0])]
    # The first ones in time, since slots are listed one after the other.
    order = sorted(range(len(kept)), key=lambda i: (kept[i][1].step, i))[:MOST_WINDOWS]
    return Compared(
        msgspec.structs.replace(found, divergences=tuple(each for _, each in kept), near_ties=tuple(ties)),
        rounding,
        readers,
        tuple(each for raw, each in located if drifts(raw)),
        tuple(show_rows(i, kept[i][0], readers) for i in order),
        (expected, actual),
    )


def _without_symbols(side: Side, lacking: frozenset[str]) -> Trace:
    trace = side.as_trace()
    return replace(trace, symbols=Symbols((), ()), fields=trace.fields - lacking)


def _keep(side: Side, known: frozenset[str]) -> Side:
    """Return a side without the groups and numbers that the other side does not have."""
    lacking = [group for group in GROUPS if f"{group}.number" not in known]
    columns = without_numbers(side.columns, lacking, np.ones(len(side.columns.steps.kind), np.bool_))
    zeroed = {
        name: np.zeros_like(getattr(columns.steps, name))
        for name in ("log_probability", "value", "overwritten")
        if f"steps.{name}" not in known
    }
    names = {group: names for group, names in side.names.items() if group not in lacking}
    return replace(side, columns=columns._replace(steps=columns.steps._replace(**zeroed)), names=names)


class Pairs:
    """The rows of the same number in the same candidate of two sides, which have the same candidates in the same order.

    rows:      the rows of each side: int64 [P]
    candidate: the index of the candidate: int64 [P]
    begin:     the first pair of the candidate: int64 [P]
    """

    def __init__(self, expected: Trajectories, actual: Trajectories) -> None:
        self._sides = expected, actual
        common = np.minimum(expected.candidates.num_steps, actual.candidates.num_steps).astype(np.int64)
        self.candidate = np.repeat(np.arange(len(common)), common)
        self.begin = starts_of(common)[self.candidate]
        ordinal = np.arange(len(self.candidate)) - self.begin
        firsts = [starts_of(side.candidates.num_steps)[self.candidate] for side in self._sides]
        self.rows = firsts[0] + ordinal, firsts[1] + ordinal

    def values(self, name: str) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the values of a column of the steps on both sides: [P] each."""
        one, two = (getattr(side.steps, name)[rows] for side, rows in zip(self._sides, self.rows, strict=True))
        return one, two

    def indices(self, path: str) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the indices of a column's values on both sides, and their pairs, if both sides have equally many."""
        group = path.partition(".")[0]
        if group == "steps":
            return *self.rows, np.arange(len(self.candidate))
        counts = self.values(GROUPS[group])
        same = np.flatnonzero(counts[0] == counts[1])
        starts = [starts_of(getattr(side.steps, GROUPS[group])) for side in self._sides]
        left, right = (expand_rows(start, rows[same]) for start, rows in zip(starts, self.rows, strict=True))
        return left, right, np.repeat(same, counts[0][same])

    def agree(self, name: str) -> NDArray[np.bool_]:
        """Return the pairs that agree in a column of the steps, or in all numbers of a group: bool [P]."""
        one, two = self.values(GROUPS.get(name, name))
        found: NDArray[np.bool_] = one == two
        if name in GROUPS:
            *indices, pair = self.indices(f"{name}.number")
            one, two = (getattr(side, name).number[at] for side, at in zip(self._sides, indices, strict=True))
            found[pair[~((one == two) | (np.isnan(one) & np.isnan(two)))]] = False
        return found


def _adopt_rounded(
    expected: Side, actual: Side, perturbed: Sequence[Side], tolerance: float | None
) -> tuple[Side, Rounding]:
    """Return the actual side with the expected number wherever the two differ by rounding only."""
    columns: Any = actual.columns
    pairs = [Pairs(expected.columns, side.columns) for side in (actual, *perturbed)]
    num, largest = 0, 0.0
    is_step = expected.columns.steps.kind == StepKind.STEP
    is_rounded, is_beyond = (np.zeros(len(is_step), np.bool_) for _ in range(2))
    for path in (*(f"steps.{name}" for name in SCALARS), *(f"{group}.number" for group in expected.names)):
        bound = _bound_rounding(expected, actual, path, tolerance)
        left, right = ENVIRONMENT.values(expected.columns, path), ENVIRONMENT.values(columns, path).copy()
        for side, pair in zip(perturbed, pairs[1:], strict=True):
            # No policy acts from changed states, so nothing is known of its numbers.
            if path.startswith("steps.") and path.removeprefix("steps.") not in side.known:
                continue
            here, there, owner = pair.indices(path)
            # An episode that a changed state ends shifts the seeds of later resets, whose differences are not rounding.
            is_of_step = is_step[pair.rows[0][owner]]
            here, there = here[is_of_step], there[is_of_step]
            moved = np.abs(ENVIRONMENT.values(side.columns, path)[there] - left[here])
            bound[here] = np.maximum(bound[here], np.where(bound[here] > 0, BEYOND_MEASURED * moved, 0.0))
        at, other, owner = pairs[0].indices(path)
        with np.errstate(invalid="ignore"):
            apart = np.abs(right[other] - left[at])
            close = (apart > 0) & (apart <= bound[at])
            is_far = ~(apart <= MOST_GROWN * bound[at])
        num += int(close.sum())
        largest = max(largest, float((apart[close] / bound[at][close]).max(initial=0.0)))
        rows = pairs[0].rows[0][owner]
        is_rounded[rows[close]] = True
        is_beyond[rows[is_far]] = True
        right[other[close]] = left[at[close]]
        columns = ENVIRONMENT.replaced(columns, path, right)
    # Rounding does not change the kind of a row, a flag, or how many numbers there are.
    for name in ("kind", "terminated", "truncated", *GROUPS.values()):
        is_beyond[pairs[0].rows[0][~pairs[0].agree(name)]] = True
    grown = np.concatenate(([False], is_rounded))[:-1] & is_step & ~is_beyond
    return replace(actual, columns=columns), Rounding(num, largest, bool(perturbed), grown)


def _bound_rounding(expected: Side, actual: Side, path: str, tolerance: float | None) -> NDArray[np.float64]:
    """Return the difference that counts as rounding for each number of a column: float64 [n]; 0 for whole numbers."""
    values = ENVIRONMENT.values(expected.columns, path)
    group = path.removeprefix("steps.").removesuffix(".number")
    types = [side.dtypes.get(group, ("float64",) if group in SCALARS else ()) for side in (expected, actual)]
    width = len(types[0])
    if not width or len(values) % width or len(types[1]) != width:
        return np.zeros(len(values))
    rows = np.abs(values.reshape(-1, width))
    eps = np.array([max(eps_of(one), eps_of(two)) for one, two in zip(*types, strict=True)])
    if tolerance is not None:
        bound: NDArray[np.float64] = np.where(eps > 0, tolerance, 0.0) * rows
        return bound.reshape(-1)
    size = np.where(np.isfinite(rows), rows, 0.0).max(axis=0, initial=0.0)
    return np.tile(ULPS * eps * size, len(rows))


def eps_of(dtype: str) -> float:
    """Return the distance of 1 to the next number of a type; 0 for whole numbers."""
    if dtype == "bfloat16":
        return 2.0**-7
    return float(np.finfo(dtype).eps) if np.dtype(dtype).kind == "f" else 0.0


def _adopt_ties(expected: Side, actual: Side, perturbed: Sequence[Side]) -> tuple[Side, list[NearTie]]:
    """Return the actual side with the expected rows wherever a last place of the state decides what differs, and these rows."""
    if not perturbed:
        return actual, []
    left, right = expected.columns, actual.columns
    differs = _decides_otherwise(left, right)
    is_tie = np.zeros_like(differs)
    for side in perturbed:
        is_tie |= differs & _decides_otherwise(left, side.columns) & ~_decides_otherwise(right, side.columns)
    rows = np.arange(len(differs))
    joined = concatenate([right, left])  # type: ignore[list-item]
    chosen: Any = select_candidates(joined, np.where(is_tie, len(rows) + rows, rows), ENVIRONMENT)
    ties = [
        NearTie(
            candidate=int(left.candidates.slot[row]),
            atom=f"slot {left.candidates.slot[row]}",
            step=int(left.candidates.start[row]),
            gap=0.0,
            bound=0.0,
            expected=_describe_ends(left, row),
            actual=_describe_ends(right, row),
        )
        for row in np.flatnonzero(is_tie).tolist()
    ]
    return replace(actual, columns=chosen), ties


def _decides_otherwise(left: Trajectories, right: Trajectories) -> NDArray[np.bool_]:
    """Return the candidates in which the flags or the kinds of rows differ: bool [N]."""
    differs: NDArray[np.bool_] = left.candidates.num_steps != right.candidates.num_steps
    pairs = Pairs(left, right)
    for name in ("kind", "terminated", "truncated", "num_observed"):
        differs[pairs.candidate[~pairs.agree(name)]] = True
    return differs


def _describe_ends(columns: Trajectories, candidate: int) -> str:
    row = int(starts_of(columns.candidates.num_steps)[candidate])
    names = [name for name in ("terminated", "truncated") if getattr(columns.steps, name)[row]]
    return " and ".join(names) or "goes on"
