"""Small runs, and engines that a third party might write: on top of the reference, right or wrong in one thing."""

import os
import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kgreference.policy import Shortest
from kgverify import EngineInfo, Limits, load_graph
from kgverify.dialects import ReferenceEngine
from kgverify.engines.policy import SHORTEST
from kgverify.engines.protocol import Positions
from kgverify.engines.table import COMPILED, make_entry
from kgverify.files.writing import temporary_folder
from kgverify.progress import Progress, no_progress
from kgverify.prover.native import library
from kgverify.runs.engine_makers import adapt_pipeline, make_for
from kgverify.runs.run import Pipeline, Run, load_policy, reference_pipeline
from kgverify.trace.model.columns import CandidateSet, Columns
from kgverify.verification.judgement import Effort

UNEXPLAINED = Effort(explained=0)
"""The effort of tests that ask no conditions of causes: their search takes most of the time of a small comparison."""

needs_data = pytest.mark.skipif("KGVERIFY_DATA" not in os.environ, reason="KGVERIFY_DATA is not set")


needs_compiler = pytest.mark.skipif(library.why_not_available() is not None, reason=str(library.why_not_available()))


def memory_folder() -> AbstractContextManager[Path]:
    """Return a new folder in memory, if possible, which has no disk to wait for."""
    return temporary_folder("kgverify-known-", "/dev/shm" if os.access("/dev/shm", os.W_OK) else None)


def countries_run(policy: str = "shortest", num_queries: int = 2, num_corruptions: int = 5) -> Run:
    graph = load_graph("countries")
    return Run(
        graph,
        policy=load_policy(policy, graph, Limits(), 0),
        num_queries=num_queries,
        num_corruptions=num_corruptions,
    )


def evaluator_pipeline(run: Run, **options: Any) -> Pipeline:
    return make_for(run, make_entry(COMPILED, **options))


def eager_pipeline(run: Run, slots: int = 16, **options: Any) -> Pipeline:
    return evaluator_pipeline(run, mode="eager", device="cpu", slots=slots, **options)


def staged_pipeline(run: Run, stages: Any, *, slots: int = 16, faults: Sequence[str] = ()) -> Pipeline:
    """Return the evaluator, eager on the CPU, with other functions as its stages, and names of faults to report."""
    from kgverify.prover.engine import CompiledEngine
    from kgverify.prover.execution_choice import choose_layout

    layout = choose_layout(run.limits, slots=slots)
    options = {"mode": "eager", "device": "cpu", "layout": layout, "stages": stages, "faults": tuple(faults)}
    return adapt_pipeline(CompiledEngine(run.graph.program, run.limits, run.policy, **options))


def unchanged(columns: Columns) -> Columns:
    return columns


class ForeignEngine:
    """Proves and takes steps, and no more: it cannot be probed. `change` is what is wrong with it."""

    def __init__(self, run: Run, change: Callable[[Columns], Columns] = unchanged, score_error: float = 0.0) -> None:
        self._inner = ReferenceEngine(run.graph.program, run.limits, SHORTEST)
        self._change = change
        self._score_error = score_error

    @property
    def info(self) -> EngineInfo:
        return EngineInfo("foreign", score_error=self._score_error)

    def prove(self, candidates: CandidateSet, progress: Progress = no_progress) -> Columns:
        return self._change(self._inner.prove(candidates, progress))

    def step(self, positions: Positions) -> Columns:
        return self._change(self._inner.step(positions))


class OtherTies(Shortest):
    """`shortest` with scores off by at most the error, which breaks ties otherwise than by place."""

    def __init__(self, error: float) -> None:
        self._error = error

    def scores(self, goal: Any, resolvents: Sequence[Any]) -> list[float]:
        exact = super().scores(goal, resolvents)
        noise = [zlib.crc32(repr(each.atoms).encode()) / 2**32 for each in resolvents]
        return [score + (2 * n - 1) * self._error for score, n in zip(exact, noise, strict=True)]


class TieBreakingEngine(ForeignEngine):
    """Every score is within its declared error, and where scores are equal another resolvent may win."""

    def __init__(
        self, run: Run, error: float, change: Callable[[Columns], Columns] = unchanged, declared: float | None = None
    ) -> None:
        super().__init__(run, change, error if declared is None else declared)
        self._inner._policy = OtherTies(error)


class FlakyEngine(ForeignEngine):
    """The second time it proves the same, one choice is another."""

    num_calls = 0

    def prove(self, candidates: CandidateSet, progress: Progress = no_progress) -> Columns:
        columns = super().prove(candidates, progress)
        self.num_calls += 1
        if self.num_calls < 2:
            return columns
        choice = columns.steps.choice.copy()
        choice[-1] += 1
        return columns._replace(steps=columns.steps._replace(choice=choice))


def foreign_pipeline(run: Run, engine: ForeignEngine) -> Pipeline:
    return reference_pipeline(run)._replace(engine=engine)


def assert_same_columns(expected: Columns, actual: Columns) -> None:
    for level, other in zip(expected, actual, strict=True):
        for name, column, found in zip(level._fields, level, other, strict=True):
            assert column.dtype == found.dtype, name
            np.testing.assert_array_equal(found, column, err_msg=name)
