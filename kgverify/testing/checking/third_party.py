"""What a third party gives, made into a pipeline: an engine's factory, or a maker of pipelines."""

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

from kgverify.engines.policy import SHORTEST
from kgverify.engines.protocol import Engine, Positions, Progress, StageOutputs, no_progress
from kgverify.errors import UserError
from kgverify.testing.checking.pipelines import MakePipeline, engine_maker
from kgverify.testing.problems.merge import merge
from kgverify.testing.problems.problem import PolicySpec, Problem
from kgverify.trace.model.columns import CandidateSet, Columns
from kgverify.trace.model.header import EngineInfo

Factory: TypeAlias = Callable[..., Any]
"""(program, limits, policy) -> engine, or (run, sizes) -> pipeline."""


def as_maker(factory: Factory, where: str = "engine") -> MakePipeline:
    """The maker of pipelines that a factory is, or stands for. UserError for what is neither."""
    num = _count_parameters(factory)
    if num == 2:
        return factory
    if num == 3:
        return engine_maker(lambda program, limits, policy: adapt_engine(factory(program, limits, policy)))
    raise UserError(
        f"expected a callable of (program, limits, policy) or of (run, sizes), found {_name(factory)}",
        where=where,
        fix="give a class or a function that makes an engine of a program, limits and a policy",
    )


def adapt_engine(engine: Any) -> Engine:
    """The engine, with what the protocol asks for beyond `prove` and `step`. UserError if it lacks one of these."""
    for method, what in (("prove", "(candidates) -> columns"), ("step", "(positions) -> columns")):
        if not callable(getattr(engine, method, None)):
            raise UserError(
                f"expected an engine with a method {method}{what}, found none",
                where=type(engine).__name__,
                fix="see kgverify.engines.protocol.Engine, or make the engine with kgverify.conformance.engine_of",
            )
    if isinstance(getattr(engine, "info", None), EngineInfo) and _takes_progress(engine):
        whole: Engine = engine
        return whole
    return _Probed(engine) if callable(getattr(engine, "probe", None)) else _Adapted(engine)


class KnownPolicies:
    """The problems that an engine can be asked about: those whose policy it knows. It is made once for each policy.

    One that raises NotImplementedError does not know the policy; nor does one that raises UserError, unless for `shortest`.
    """

    def __init__(self, make_pipeline: MakePipeline) -> None:
        self._make = make_pipeline
        self._known: dict[PolicySpec, bool] = {}

    def __contains__(self, problem: object) -> bool:
        """Whether the engine knows the policy of a problem; an exception of another kind is for a comparison to tell."""
        if not isinstance(problem, Problem):
            return False
        if problem.policy not in self._known:
            self._known[problem.policy] = self._knows_policy_of(problem)
        return self._known[problem.policy]

    def _knows_policy_of(self, problem: Problem) -> bool:
        try:
            make_once(self._make, problem)
        except NotImplementedError:
            return False
        except UserError:
            return problem.policy.name == SHORTEST.name
        except Exception:
            return True
        return True


def make_once(make_pipeline: MakePipeline, problem: Problem) -> None:
    """Make an engine for a problem, and raise what it raises."""
    merged = merge([problem])
    make_pipeline(merged.run, merged.sizes)


class _Adapted:
    """An engine without `info`, or whose `prove` does not tell its progress."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    @property
    def info(self) -> EngineInfo:
        """The engine's own, or its class's name."""
        info = getattr(self._engine, "info", None)
        return info if isinstance(info, EngineInfo) else EngineInfo(name=type(self._engine).__name__)

    def prove(self, candidates: CandidateSet, progress: Progress = no_progress) -> Columns:
        """The engine's."""
        columns: Columns = self._engine.prove(candidates)
        progress(len(columns.candidates.query))
        return columns

    def step(self, positions: Positions) -> Columns:
        """The engine's."""
        columns: Columns = self._engine.step(positions)
        return columns


class _Probed(_Adapted):
    def probe(self, position: Positions) -> StageOutputs:
        """The engine's."""
        outputs: StageOutputs = self._engine.probe(position)
        return outputs


def _takes_progress(engine: Any) -> bool:
    try:
        return len(inspect.signature(engine.prove).parameters) > 1
    except (TypeError, ValueError):
        return True


def _count_parameters(factory: Factory) -> int:
    """The parameters without a default; 3 where they cannot be told; -1 for what cannot be called."""
    if not callable(factory):
        return -1
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return 3
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.kind in plain and each.default is inspect.Parameter.empty for each in parameters)


def _name(factory: object) -> str:
    return getattr(factory, "__qualname__", None) or repr(factory)
