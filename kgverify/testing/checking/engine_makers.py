"""An engine under test as it is written down, so that it can be made again: what it is, how it runs, its faults."""

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from kgverify.engines.policy import SHORTEST, Policy
from kgverify.engines.protocol import Engine, Positions, Progress, StageOutputs, no_progress
from kgverify.errors import UserError
from kgverify.faults.catalogue import find_faults
from kgverify.faults.fault import Fault
from kgverify.program.limits import Limits
from kgverify.program.program import Program
from kgverify.ranking.corrupt import draw_candidates
from kgverify.ranking.rank import rank_candidates
from kgverify.runs.run import Pipeline, Run
from kgverify.testing.problems.merge import merge
from kgverify.testing.problems.problem import PolicySpec, Problem, Sizes
from kgverify.trace.model.columns import CandidateSet, Columns
from kgverify.trace.model.header import EngineInfo

MakePipeline: TypeAlias = Callable[[Run, Sizes], Pipeline]
"""From a run and the sizes of its batch to what is under test."""

MakeEngine: TypeAlias = Callable[[Program, Limits, Policy], Engine]
"""What a third party gives: an engine for a program."""


def compiled_maker(*, mode: str = "eager", device: str = "cpu", faults: Sequence[str | Fault] = ()) -> MakePipeline:
    """Makes the compiled evaluator, with the given faults in it, by name or as they are. UserError for an unknown name.

    With a `mode` other than eager each run is a compilation.
    """
    planted = tuple(find_faults([each])[0] if isinstance(each, str) else each for each in faults)

    def make(run: Run, sizes: Sizes) -> Pipeline:
        from kgverify.engines.compiled.engine import CompiledEngine
        from kgverify.engines.compiled.execution.layout import choose_layout
        from kgverify.faults.plant import plant_faults

        plant = plant_faults(run, planted)
        limits = run.limits
        layout = choose_layout(
            limits,
            slots=sizes.slots,
            atoms=limits.max_atoms + sizes.atoms,
            resolvents=limits.max_resolvents + sizes.resolvents,
            match_window=sizes.match_window,
            score_window=max(limits.max_resolvents, sizes.score_window),
            pool=sizes.pool,
        )
        engine = CompiledEngine(
            run.graph.program,
            limits,
            run.policy,
            mode=mode,
            device=device,
            layout=layout,
            stages=plant.stages,
            faults=tuple(fault.name for fault in planted),
        )
        return Pipeline(plant.wrap_engine(engine), plant.draw, plant.rank)

    return make


def engine_maker(make_engine: MakeEngine) -> MakePipeline:
    """Makes an engine of one's own; corruptions are drawn and ranks counted by kgverify."""

    def make(run: Run, sizes: Sizes) -> Pipeline:
        return Pipeline(make_engine(run.graph.program, run.limits, run.policy), draw_candidates, rank_candidates)

    return make


COMPILED: Final = "compiled"
REFERENCE: Final = "reference"
_FUNCTION: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", re.ASCII)
_WHAT: Final = "a class, or a function of (program, limits, policy), that makes an engine"


class EngineSpec(NamedTuple):
    """Which engine: `compiled`, `reference`, or `MODULE:NAME` that makes one from a program, limits and a policy.

    mode, device, faults: of the compiled evaluator
    """

    name: str = COMPILED
    mode: str = "eager"
    device: str = "cpu"
    faults: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.name != COMPILED:
            return self.name
        return ", ".join([f"{self.name} ({self.mode}, {self.device})", *(f"fault {each}" for each in self.faults)])


EAGER: Final = EngineSpec()
"""The eager evaluator as it is."""


def make_pipeline(spec: EngineSpec, where: str = "--engine") -> MakePipeline:
    """The maker of an engine. UserError for one that kgverify cannot make."""
    if spec.name == COMPILED:
        return compiled_maker(mode=spec.mode, device=spec.device, faults=spec.faults)
    if spec.name == REFERENCE:
        from kgverify.engines.reference.engine import ReferenceEngine

        return as_maker(ReferenceEngine)
    if not _FUNCTION.fullmatch(spec.name):
        raise UserError(
            f"kgverify cannot make the engine {spec.name!r}",
            where=where,
            fix=f"give `{COMPILED}`, `{REFERENCE}`, or MODULE:NAME, {_WHAT}",
        )
    return as_maker(load_factory(spec.name, where), where)


def load_factory(name: str, where: str) -> Any:
    """What `MODULE:NAME` names, looked for in the current folder too. UserError if it cannot be loaded."""
    module_name, _, path = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        stem, is_file, _ = module_name.rpartition(".py")
        fix = (
            f"give the module without its suffix: {stem}:{path}"
            if is_file
            else "run this where Python finds the module"
        )
        raise UserError(f"cannot import {module_name!r}: {error}", where=where, fix=fix) from None
    for part in path.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise UserError(f"{module_name!r} has no function {path!r}", where=where, fix=f"name {_WHAT}")
    return found


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
