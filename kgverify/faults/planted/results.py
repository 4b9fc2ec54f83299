"""Faults at the edge of the engine, where candidates are proved in chunks."""

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kgverify.engines.protocol import Engine, Positions, ProbedEngine, Progress, StageOutputs, no_progress
from kgverify.errors import InternalError
from kgverify.faults.fault import Plant
from kgverify.trace.model.columns import CandidateSet, Columns, select_candidates
from kgverify.trace.model.header import EngineInfo

CHUNK: Final = 16
"""The number of candidates proved at a time by code with these faults."""

Rows: TypeAlias = Callable[[int], NDArray[np.int64]]
"""A function from the number of candidates to the rows that are in the result."""


class AlteredEngine:
    """An engine that alters the results of another; the steps are unchanged."""

    def __init__(self, engine: Engine, rows: Rows) -> None:
        self._engine = engine
        self._rows = rows

    @property
    def info(self) -> EngineInfo:
        """The description of the other engine."""
        return self._engine.info

    def prove(self, candidates: CandidateSet, progress: Progress = no_progress) -> Columns:
        """Prove the candidates, and lose or double some."""
        columns = self._engine.prove(candidates, progress)
        return select_candidates(columns, self._rows(len(columns.candidates.query)))

    def step(self, positions: Positions) -> Columns:
        """Take one step from each position with the other engine."""
        return self._engine.step(positions)

    def probe(self, position: Positions) -> StageOutputs:
        """Probe the other engine. InternalError if it cannot be probed."""
        if not isinstance(self._engine, ProbedEngine):
            raise InternalError("the engine with the fault cannot be probed")
        return self._engine.probe(position)


def drop_at_boundary(plant: Plant) -> Plant:
    """Lose the last candidate of each chunk but the last."""

    def rows(num: int) -> NDArray[np.int64]:
        candidate = np.arange(num)
        return np.flatnonzero(((candidate + 1) % CHUNK != 0) | (candidate == num - 1))

    return _alter(plant, rows)


def double_at_boundary(plant: Plant) -> Plant:
    """Count the first candidate of each chunk but the first with the chunk before as well."""

    def rows(num: int) -> NDArray[np.int64]:
        candidate = np.arange(num)
        return np.repeat(candidate, 1 + ((candidate % CHUNK == 0) & (candidate > 0)))

    return _alter(plant, rows)


def _alter(plant: Plant, rows: Rows) -> Plant:
    inner = plant.wrap_engine
    return plant._replace(wrap_engine=lambda engine: AlteredEngine(inner(engine), rows))
