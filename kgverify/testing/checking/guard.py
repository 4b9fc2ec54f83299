"""Distinguish the exceptions of the engine under test from those of kgverify."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

import numpy as np

from kgverify.engines.protocol import Engine, Positions, ProbedEngine, Progress, StageOutputs, no_progress
from kgverify.errors import InternalError
from kgverify.ranking.corrupt import draw_candidates
from kgverify.ranking.rank import rank_candidates
from kgverify.runs.delta_debugging import halve
from kgverify.runs.run import Pipeline, Run
from kgverify.testing.checking.engine_makers import MakePipeline
from kgverify.testing.checking.watchdog import EngineCrash, find_limit, limit_time
from kgverify.testing.problems.problem import Problem, Sizes
from kgverify.trace.model.columns import CandidateSet, Columns, Rankings
from kgverify.trace.model.header import EngineInfo

OWN: Final = (draw_candidates, rank_candidates)
"""Functions of kgverify in a pipeline: their exceptions are not the engine's."""

P = ParamSpec("P")
T = TypeVar("T")


def guard(make_pipeline: MakePipeline) -> MakePipeline:
    """Return the same maker; its exceptions, and those of the pipelines that it makes, become `EngineCrash`."""

    def make(run: Run, sizes: Sizes) -> Pipeline:
        with limit_time(find_limit(run, sizes, 0, "")):
            made = _call(make_pipeline, run, sizes)
        if not isinstance(made, Pipeline):
            raise _no_result("a pipeline", made)
        return Pipeline(
            GuardedEngine(made.engine, partial(find_limit, run, sizes)),
            made.draw if made.draw in OWN else _guarded(made.draw, CandidateSet),
            made.rank if made.rank in OWN else _guarded(made.rank, Rankings),
        )

    return make


class GuardedEngine:
    """An engine whose exceptions become `EngineCrash`, within a limit of time; it can be probed if the engine can.

    find_limit: returns seconds for a number of candidates and a mode
    """

    def __init__(self, engine: Engine, find_limit: Callable[[int, str], float]) -> None:
        self._engine, self._find_limit = engine, find_limit
        if isinstance(engine, ProbedEngine):
            self.probe: Callable[[Positions], StageOutputs] = partial(_call, engine.probe)  # type: ignore[call-arg]

    @property
    def info(self) -> EngineInfo:
        """The engine's info."""
        return _call(lambda: self._engine.info)

    def prove(self, candidates: CandidateSet, progress: Progress = no_progress) -> Columns:
        """Prove the candidates."""
        with self._limit(len(candidates.query)):
            return _checked_columns(_call(self._engine.prove, candidates, progress))

    def step(self, positions: Positions) -> Columns:
        """Take one step from each position."""
        with self._limit(len(positions.depth)):
            return _checked_columns(_call(self._engine.step, positions))

    def _limit(self, num_candidates: int) -> AbstractContextManager[None]:
        return limit_time(self._find_limit(num_candidates, self.info.mode))


class CheckBug(InternalError):
    """A bug of kgverify that was met while problems were checked.

    problems: the smallest group found that meets it in one run
    """

    def __init__(self, message: str, problems: tuple[Problem, ...] = ()) -> None:
        self.problems = problems
        super().__init__(message)


def locate_bug(problems: Sequence[Problem], error: Exception, again: Callable[[Sequence[Problem]], object]) -> CheckBug:
    """Return the error for a bug of kgverify that was met on problems in one run, narrowed down by halving.

    again: repeats on some of the problems what met the bug
    """

    def fails(some: Sequence[Problem]) -> bool:
        try:
            again(some)
        except Exception as other:
            return type(other) is type(error)
        return False

    return CheckBug(f"{type(error).__name__}: {error}", tuple(halve(problems, fails)))


def _guarded(function: Callable[P, T], kind: type[T]) -> Callable[P, T]:
    def call(*arguments: P.args, **named: P.kwargs) -> T:
        return _checked(_call(function, *arguments, **named), kind)

    return call


def _call(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    try:
        return function(*arguments, **named)
    except EngineCrash:
        raise
    except Exception as error:
        raise EngineCrash(str(error), type(error).__name__) from error


def _checked_columns(result: Any) -> Columns:
    columns = _checked(result, Columns)
    arrays = _call(lambda: [array for level in columns for array in level])
    for array in arrays:
        _checked(array, np.ndarray)
    return columns


def _checked(result: Any, kind: type[T]) -> T:
    if not isinstance(result, kind):
        raise _no_result(kind.__name__, result)
    return result


def _no_result(expected: str, found: object) -> EngineCrash:
    return EngineCrash(f"expected {expected}, found {type(found).__name__}", TypeError.__name__)
