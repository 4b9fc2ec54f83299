"""The paths of a search in columns: the level of each step, and the step from which it comes."""

import numpy as np
from numpy.typing import NDArray

from kgverify.trace.model.columns import Columns, starts_of


def has_paths(columns: Columns) -> bool:
    """Return whether the columns are those of a search with several paths."""
    return len(columns.paths.place) > 0


def _number_beams(columns: Columns) -> NDArray[np.int64]:
    """Return the number of the beam of each step, over all candidates: int64 [T]."""
    place, num_steps = columns.paths.place, columns.candidates.num_steps
    begins = np.ones(len(place), np.bool_)
    begins[1:] = place[1:] <= place[:-1]
    begins[starts_of(num_steps)[:-1][num_steps > 0]] = True
    numbers: NDArray[np.int64] = np.cumsum(begins)
    return numbers


def number_levels(columns: Columns) -> NDArray[np.int64]:
    """Return the number of each step's level in its candidate, from 0: int64 [T]."""
    first, num_steps = starts_of(columns.candidates.num_steps)[:-1], columns.candidates.num_steps
    beams = _number_beams(columns)
    levels: NDArray[np.int64] = beams - np.repeat(np.append(beams, 0)[first], num_steps)
    return levels


def find_levels(columns: Columns) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the candidate of each level, and its first row: int64 [L] each."""
    begins = np.flatnonzero(np.diff(_number_beams(columns), prepend=0))
    owner = np.repeat(np.arange(len(columns.candidates.num_steps)), columns.candidates.num_steps)
    return owner[begins], begins


def find_parents(columns: Columns) -> NDArray[np.int64]:
    """Return the row of the step from which each step comes: int64 [T]; -1 if there is none.

    Without paths, it is the step before of the same candidate.
    """
    first, num_steps = starts_of(columns.candidates.num_steps)[:-1], columns.candidates.num_steps
    rows = np.arange(int(num_steps.sum()))
    if not has_paths(columns):
        return np.where(rows == np.repeat(first, num_steps), -1, rows - 1)
    beams, paths = _number_beams(columns), columns.paths
    width = int(max(paths.place.max(), paths.parent.max())) + 2
    keys = beams * width + paths.place
    wanted = np.where((number_levels(columns) > 0) & (paths.parent >= 0), (beams - 1) * width + paths.parent, -1)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, at, -1)


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
