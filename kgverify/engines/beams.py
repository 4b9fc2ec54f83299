"""Levels of searches, taken by an engine from given beams."""

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from kgverify.engines.adapters.stepwise import read_positions
from kgverify.engines.protocol import Engine, Positions, candidate_set, positions_of
from kgverify.step.search import Path
from kgverify.trace.model.columns import NO_PATHS, Candidates, CandidateSet, Columns, select_steps, starts_of
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
    """Take one step from each goal of a trace, each as a candidate; in a search, one level from each beam."""
    if not has_paths(columns):
        return engine.step(positions_of(columns))
    assert isinstance(engine, SearchingEngine)
    return engine.take_beams(*read_beams(columns))


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


class BeamwiseEngine:
    """A searching engine that takes a step of a path together with the other paths of its beam, as it did in a run.

    columns: the run, whose beams are taken. A step from a goal outside of it is taken alone.
    """

    def __init__(self, engine: SearchingEngine, columns: Columns) -> None:
        self._engine, self._columns = engine, columns

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    @cached_property
    def _beams(self) -> tuple[CandidateSet, list[list[Path]]]:
        return read_beams(self._columns)

    @cached_property
    def _places(self) -> dict[Any, tuple[int, int]]:
        """The beam of each path, and its index there, by the query and the goals that the path visited."""
        candidates, beams = self._beams
        return {
            (*atom, *map(tuple, path.visited)): (number, i)
            for number, (atom, beam) in enumerate(zip(candidates.atom.tolist(), beams, strict=True))
            for i, path in enumerate(beam)
        }

    def step(self, positions: Positions) -> Columns:
        """Take one step from each position, in its beam."""
        queries, visited = read_positions(positions)
        keys = [(*query, *map(tuple, goals)) for query, goals in zip(queries, visited, strict=True)]
        found = [self._places.get(key) for key in keys]
        if not all(found):
            return self._engine.step(positions)
        rows = [each for each in found if each is not None]
        candidates, beams = self._beams
        numbers = np.array([number for number, _ in rows])
        taken = self._engine.take_beams(candidates.take(numbers), [beams[number] for number in numbers.tolist()])
        first = starts_of(taken.candidates.num_steps)[:-1]
        steps = select_steps(taken, first + np.array([i for _, i in rows], np.int64))
        ends = Candidates(
            *positions.candidates,
            np.ones(len(rows), np.uint32),
            steps.steps.outcome,
            ((steps.steps.dropped_atoms > 0) | (steps.steps.dropped_resolvents > 0)).astype(np.uint8),
            np.zeros(len(rows)),
        )
        return steps._replace(candidates=ends, paths=NO_PATHS)


def in_beams(engine: Engine, columns: Columns) -> Engine:
    """Return an engine that takes steps of a search's paths in their beams, if it can."""
    if has_paths(columns) and isinstance(engine, SearchingEngine):
        found: Any = BeamwiseEngine(engine, columns)
        return found  # type: ignore[no-any-return]
    return engine
