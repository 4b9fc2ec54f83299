"""Problems in one run whose candidates the engine is given one problem after the other: the company of each is its own.

Where a step is right alone and wrong among others, problems that share slots would decide over each other.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np

from kgverify.engines.protocol import Engine, Positions, Progress, no_progress
from kgverify.runs.run import Pipeline, Run
from kgverify.testing.checking.check import Batch
from kgverify.testing.checking.pipelines import MakePipeline
from kgverify.testing.problems.merge import Merged
from kgverify.testing.problems.problem import Sizes
from kgverify.trace.model.columns import CandidateSet, Columns, concatenate
from kgverify.trace.model.header import EngineInfo


def prove_apart(batch: Batch, make_pipeline: MakePipeline) -> tuple[Batch, MakePipeline]:
    """The batch with the sizes of a single problem, and the maker of an engine that proves one problem after the other.

    All problems must have the same sizes.
    """
    merged = replace(batch.merged, sizes=batch.merged.problems[0].sizes)

    def make(run: Run, sizes: Sizes) -> Pipeline:
        made = make_pipeline(run, sizes)
        return made._replace(engine=_Apart(made.engine, merged))

    return replace(batch, merged=merged), make


class _Apart:
    """An engine that is given the candidates of one problem at a time."""

    def __init__(self, engine: Engine, merged: Merged) -> None:
        self._engine = engine
        self._merged = merged

    @property
    def info(self) -> EngineInfo:
        """The engine's."""
        return self._engine.info

    def prove(self, candidates: CandidateSet, progress: Progress = no_progress) -> Columns:
        """What the engine gives of each problem, together."""
        return concatenate([self._engine.prove(part, progress) for part in self._split(candidates)])

    def step(self, positions: Positions) -> Columns:
        """As the engine does."""
        return self._engine.step(positions)

    def _split(self, candidates: CandidateSet) -> Iterator[CandidateSet]:
        owner = self._merged.owner[candidates.query]
        bounds = [0, *(np.flatnonzero(np.diff(owner)) + 1).tolist(), len(owner)]
        for begin, end in pairwise(bounds):
            yield candidates.take(slice(begin, end))
