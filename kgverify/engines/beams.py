"""Levels of searches, taken by an engine from given beams."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from kgverify.engines.adapters.stepwise import read_positions
from kgverify.engines.protocol import Engine, candidate_set, positions_of
from kgverify.errors import UserError, count_of
from kgverify.step.search import Path
from kgverify.trace.model.columns import CandidateSet, Columns, starts_of
from kgverify.trace.model.paths import find_levels, has_paths, list_visited


@runtime_checkable
class SearchingEngine(Engine, Protocol):
    """An engine that takes a level of a search from given beams. Optional: without it, there is no lockstep of searches."""

    def take_beams(self, candidates: CandidateSet, beams: Sequence[Sequence[Path]]) -> Columns:
        """Take a level of each beam; return columns with a candidate for each, whose steps are its paths."""
        ...


def takes_steps(engine: Engine, *, has_paths: bool) -> bool:
    """Return whether an engine takes steps from goals that are given to it: in a search, levels from given beams."""
    return not has_paths or isinstance(engine, SearchingEngine)


def take_again(engine: Engine, columns: Columns) -> Columns:
    """Take one step from each goal of a trace, each as a candidate; in a search, one level from each beam.

    UserError if the engine returns another number of them.
    """
    if not has_paths(columns):
        num, taken = len(columns.steps.depth), engine.step(positions_of(columns))
    else:
        candidates, beams = read_beams(columns)
        assert isinstance(engine, SearchingEngine)
        num, taken = len(beams), engine.take_beams(candidates, beams)
    if len(taken.candidates.query) != num:
        raise UserError(
            f"returned {count_of(len(taken.candidates.query), 'step')} from {count_of(num, 'position')}",
            where=f"engine {engine.info.name}",
            fix="return one candidate with one step for each position, in the order given; in a search, one with one level",
        )
    return taken


def read_beams(columns: Columns) -> tuple[CandidateSet, list[list[Path]]]:
    """Return the beam of each level, and its candidate."""
    owners, begins = find_levels(columns)
    _, visited = read_positions(positions_of(columns))
    paths, depth = columns.paths, columns.steps.depth
    num_goals, rows = list_visited(columns)
    # The last steps that were not counted have the depth of the path.
    is_last = depth[rows] == np.repeat(depth, num_goals)
    num_uncounted = np.add.reduceat(is_last.astype(np.int64), starts_of(num_goals)[:-1]) - 1
    fields = paths.place, paths.parent, paths.log_probability, depth, num_uncounted
    every = [
        Path(place, goals, log_probability, own_depth, num_uncounted=num, parent=parent)
        for goals, place, parent, log_probability, own_depth, num in zip(
            visited, *(each.tolist() for each in fields), strict=True
        )
    ]
    bounds = [*begins.tolist(), len(every)]
    return candidate_set(columns).take(owners), [every[a:b] for a, b in pairwise(bounds)]


def find_owners(columns: Columns) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the candidate of each candidate that `lockstep_columns` makes, and the number of its first step in the run."""
    if has_paths(columns):
        owners, begins = find_levels(columns)
        return owners, begins - starts_of(columns.candidates.num_steps)[owners]
    owners = np.repeat(np.arange(len(columns.candidates.query)), columns.candidates.num_steps)
    return owners, np.zeros(len(owners), np.int64)
