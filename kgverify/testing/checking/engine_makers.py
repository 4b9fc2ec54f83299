"""Engines under test: specifications that can be written down, and functions that make pipelines from them."""

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from kgverify.engines.policy import SHORTEST
from kgverify.engines.protocol import Engine, Positions, Progress, no_progress
from kgverify.errors import UserError
from kgverify.faults.catalogue import find_faults
from kgverify.faults.fault import Fault
from kgverify.ranking.corrupt import draw_candidates
from kgverify.ranking.rank import rank_candidates
from kgverify.runs.run import Pipeline, Run
from kgverify.testing.problems.merge import merge
from kgverify.testing.problems.problem import PolicySpec, Problem, Sizes
from kgverify.trace.model.columns import CandidateSet, Columns
from kgverify.trace.model.header import EngineInfo

MakePipeline: TypeAlias = Callable[[Run, Sizes], Pipeline]
"""A function that makes the pipeline under test for a run and the sizes of its batch."""


def compiled_maker(*, mode: str = "eager", device: str = "cpu", faults: Sequence[str | Fault] = ()) -> MakePipeline:
    """Return a maker of the compiled evaluator with some faults, by name or as records. UserError for an unknown name.

    With a `mode` other than eager each run is a compilation.
    """
    planted = tuple(find_faults([each])[0] if isinstance(each, str) else each for each in faults)

    def make(run: Run, sizes: Sizes) -> Pipeline:
        from kgverify.engines.compiled.engine import CompiledEngine
        from kgverify.engines.compiled.layout import choose_layout
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


COMPILED: Final = "compiled"
REFERENCE: Final = "reference"
_FUNCTION: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", re.ASCII)
_FACTORY: Final = "a class, or a function of (program, limits, policy), that makes an engine"


class EngineSpec(NamedTuple):
    """The name of an engine: `compiled`, `reference`, or `MODULE:NAME` for a third party's.

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
"""The eager evaluator without faults."""


def find_maker(spec: EngineSpec, where: str = "--engine") -> MakePipeline:
    """Return the maker of an engine. UserError if kgverify cannot make it."""
    if spec.name == COMPILED:
        return compiled_maker(mode=spec.mode, device=spec.device, faults=spec.faults)
    if spec.name == REFERENCE:
        from kgverify.engines.reference.engine import ReferenceEngine

        return as_maker(ReferenceEngine)
    if not _FUNCTION.fullmatch(spec.name):
        raise UserError(
            f"kgverify cannot make the engine {spec.name!r}",
            where=where,
            fix=f"give `{COMPILED}`, `{REFERENCE}`, or MODULE:NAME, {_FACTORY}",
        )
    return as_maker(load_factory(spec.name, where), where)


def load_factory(name: str, where: str) -> Any:
    """Import `MODULE:NAME`, also from the current folder. UserError if it cannot be loaded."""
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
        raise UserError(f"{module_name!r} has no function {path!r}", where=where, fix=f"name {_FACTORY}")
    return found


Factory: TypeAlias = Callable[..., Any]
"""A function (program, limits, policy) -> engine, or (run, sizes) -> pipeline."""


def as_maker(factory: Factory, where: str = "engine") -> MakePipeline:
    """Return the maker of pipelines for a factory, to whose engines kgverify adds its draw and its ranks.

    UserError for anything else.
    """
    num = _count_parameters(factory)
    if num == 2:
        return factory
    if num == 3:
        return lambda run, sizes: Pipeline(
            adapt_engine(factory(run.graph.program, run.limits, run.policy)), draw_candidates, rank_candidates
        )
    raise UserError(
        f"expected a callable of (program, limits, policy) or of (run, sizes), found {_name(factory)}",
        where=where,
        fix="give a class or a function that makes an engine of a program, limits and a policy",
    )


def adapt_engine(engine: Any) -> Engine:
    """Return the engine with the optional parts of the protocol added. UserError if it lacks `prove` or `step`."""
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
    return _Adapted(engine)


def find_supported(make_pipeline: MakePipeline, problems: Sequence[Problem]) -> list[int]:
    """Return the indices of the problems whose policy an engine supports, which is made once for each policy.

    An engine does not support a policy if it raises NotImplementedError or, except for `shortest`, UserError.
    """
    is_supported: dict[PolicySpec, bool] = {}
    for problem in problems:
        if problem.policy in is_supported:
            continue
        is_supported[problem.policy] = True
        try:
            make_once(make_pipeline, problem)
        except NotImplementedError:
            is_supported[problem.policy] = False
        except UserError:
            is_supported[problem.policy] = problem.policy.name == SHORTEST.name
        except Exception:
            # A crash, which the problems show.
            continue
    return [i for i, problem in enumerate(problems) if is_supported[problem.policy]]


def make_once(make_pipeline: MakePipeline, problem: Problem) -> None:
    """Make an engine for a problem, and raise what it raises."""
    merged = merge([problem])
    make_pipeline(merged.run, merged.sizes)


class _Adapted:
    """An engine without `info`, or whose `prove` does not report its progress; it can be probed if the engine can."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        if callable(probe := getattr(engine, "probe", None)):
            self.probe = probe

    @property
    def info(self) -> EngineInfo:
        """The engine's own, or one with its class's name."""
        info = getattr(self._engine, "info", None)
        return info if isinstance(info, EngineInfo) else EngineInfo(name=type(self._engine).__name__)

    def prove(self, candidates: CandidateSet, progress: Progress = no_progress) -> Columns:
        """Prove the candidates, and report the progress at the end."""
        columns: Columns = self._engine.prove(candidates)
        progress(len(columns.candidates.query))
        return columns

    def step(self, positions: Positions) -> Columns:
        """Take one step from each position."""
        columns: Columns = self._engine.step(positions)
        return columns


def _takes_progress(engine: Any) -> bool:
    try:
        return len(inspect.signature(engine.prove).parameters) > 1
    except (TypeError, ValueError):
        return True


def _count_parameters(factory: Factory) -> int:
    """Return the number of parameters without a default; 3 if it is unknown, -1 if it cannot be called."""
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
