"""Faults at the edge of the engine: what becomes of candidates that are proved in chunks."""

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
"""Candidates proved at a time, by the code that has these faults."""

Rows: TypeAlias = Callable[[int], NDArray[np.int64]]
"""From how many candidates were given to which of them are in the result."""


class AlteredEngine:
    """An engine whose candidates are altered on their way out; the steps are its own."""

    def __init__(self, engine: Engine, rows: Rows) -> None:
        self._engine = engine
        self._rows = rows

    @property
    def info(self) -> EngineInfo:
        """The engine's own."""
        return self._engine.info

    def prove(self, candidates: CandidateSet, progress: Progress = no_progress) -> Columns:
        """What the engine gives, some candidates lost or doubled."""
        columns = self._engine.prove(candidates, progress)
        return select_candidates(columns, self._rows(len(columns.candidates.query)))

    def step(self, positions: Positions) -> Columns:
        """The engine's own."""
        return self._engine.step(positions)

    def probe(self, position: Positions) -> StageOutputs:
        """The engine's own. InternalError if it cannot be probed."""
        if not isinstance(self._engine, ProbedEngine):
            raise InternalError("the engine with the fault cannot be probed")
        return self._engine.probe(position)


def drop_at_boundary(plant: Plant) -> Plant:
    """Lose the last candidate of each chunk but the last."""

    def rows(num: int) -> NDArray[np.int64]:
        places = np.arange(num)
        return np.flatnonzero(((places + 1) % CHUNK != 0) | (places == num - 1))

    return _alter(plant, rows)


def double_at_boundary(plant: Plant) -> Plant:
    """Count the first candidate of each chunk but the first with the chunk before as well."""

    def rows(num: int) -> NDArray[np.int64]:
        places = np.arange(num)
        return np.repeat(places, 1 + ((places % CHUNK == 0) & (places > 0)))

    return _alter(plant, rows)


def _alter(plant: Plant, rows: Rows) -> Plant:
    inner = plant.wrap_engine
    return plant._replace(wrap_engine=lambda engine: AlteredEngine(inner(engine), rows))
