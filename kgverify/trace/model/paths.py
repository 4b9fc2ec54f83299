"""The paths of a search in columns: the level of each step, and the step from which it comes."""

import numpy as np
from numpy.typing import NDArray

from kgverify.program.outcomes import GoalKind
from kgverify.trace.model.columns import Columns, starts_of


def has_paths(columns: Columns) -> bool:
    """Return whether the columns are those of a search with several paths."""
    return len(columns.paths.place) > 0


def _number_beams(columns: Columns) -> NDArray[np.int64]:
    """Return the number of the beam of each step, over all candidates: int64 [T]."""
    num_steps = columns.candidates.num_steps
    owner = np.repeat(np.arange(len(num_steps)), num_steps)
    begins = (np.diff(owner, prepend=-1) != 0) | (np.diff(columns.paths.level, prepend=-1) != 0)
    numbers: NDArray[np.int64] = np.cumsum(begins)
    return numbers


def find_levels(columns: Columns) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the candidate of each level, and its first row: int64 [L] each."""
    begins = np.flatnonzero(np.diff(_number_beams(columns), prepend=0))
    owner = np.repeat(np.arange(len(columns.candidates.num_steps)), columns.candidates.num_steps)
    return owner[begins], begins


def find_parents(columns: Columns) -> NDArray[np.int64]:
    """Return the row of the step from which each step comes: int64 [T]; -1 for a step without one.

    Without paths, it is the step before of the same candidate.
    """
    first, num_steps = starts_of(columns.candidates.num_steps)[:-1], columns.candidates.num_steps
    rows = np.arange(int(num_steps.sum()))
    if not has_paths(columns):
        return np.where(rows == np.repeat(first, num_steps), -1, rows - 1)
    paths, beams = columns.paths, _number_beams(columns)
    is_first = beams == np.repeat(np.append(beams, 0)[first], num_steps)
    return _find(beams, paths.place, beams - 1, np.where(is_first, -1, paths.parent))


def count_depth(columns: Columns, *, skips_unary: bool) -> NDArray[np.int64]:
    """Return how much each step adds to the depth: int64 [S]; 0 for a single goal if the dialect does not count it."""
    counts = np.ones(len(columns.steps.depth), np.int64)
    if skips_unary:
        first = starts_of(columns.steps.num_resolvents)[:-1]
        is_single = columns.steps.num_resolvents == 1
        counts[is_single] = columns.resolvents.kind[first[is_single]] != GoalKind.GOAL
    return counts


def find_made(columns: Columns) -> NDArray[np.int64]:
    """Return the row of the resolvent that became the goal of each step: int64 [T]; -1 for a step without one."""
    num, parents = columns.steps.num_resolvents, find_parents(columns)
    if not has_paths(columns):
        choice = columns.steps.choice[parents].astype(np.int64)
        is_made = (parents >= 0) & (choice >= 0) & (choice < num[parents])
        return np.where(is_made, starts_of(num)[:-1][parents] + choice, -1)
    beams = _number_beams(columns)
    kept = np.flatnonzero(columns.paths.child >= 0)
    of = np.repeat(beams, num)[kept], columns.paths.child[kept]
    found = _find(*of, beams - 1, np.where(parents >= 0, columns.paths.place, -1))
    return np.where(found >= 0, np.append(kept, -1)[found], -1)


def _find(
    beams: NDArray[np.int64], places: NDArray[np.int32], wanted: NDArray[np.int64], of: NDArray[np.int32]
) -> NDArray[np.int64]:
    """Return the index of a beam and a place among some; -1 if it is not there, or the place is below 0."""
    if not len(beams):
        return np.full(len(wanted), -1)
    width = int(max(places.max(initial=0), of.max(initial=0))) + 1
    keys, asked = beams * width + places, np.where(of >= 0, wanted * width + of, -1)
    order = np.argsort(keys, kind="stable")
    at = order[np.minimum(np.searchsorted(keys[order], asked), len(keys) - 1)]
    return np.where(keys[at] == asked, at, -1)


def list_visited(columns: Columns) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Return how many goals each step has visited, uint32 [T], and the rows of these goals, the current one last: int64 [V]."""
    parents = find_parents(columns)
    if not has_paths(columns):
        first = starts_of(columns.candidates.num_steps)[:-1]
        num = np.arange(len(parents)) - np.repeat(first, columns.candidates.num_steps) + 1
        return num.astype(np.uint32), np.repeat(np.arange(len(parents)) + 1 - np.cumsum(num), num) + np.arange(
            int(num.sum())
        )
    owners, rows = [np.arange(len(parents))], [np.arange(len(parents))]
    while len(rows[-1]):
        above = parents[rows[-1]]
        owners.append(owners[-1][above >= 0])
        rows.append(above[above >= 0])
    back = np.repeat(np.arange(len(rows)), list(map(len, rows)))
    owner, row = np.concatenate(owners), np.concatenate(rows)
    return np.bincount(owner, minlength=len(parents)).astype(np.uint32), row[np.lexsort((-back, owner))]
