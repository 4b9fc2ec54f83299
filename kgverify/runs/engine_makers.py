"""Engines under test: specifications that can be stored as text, and functions that make pipelines from them."""

import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from kgverify.engines.load_engine import SIGNATURE, load_factory
from kgverify.engines.protocol import Engine, Positions, Sizes
from kgverify.engines.support import ANY_PROGRAM, Support
from kgverify.engines.table import COMPILED, MODEL, REFERENCE, SEARCH, Capability, EngineMaker, find_entry, make_entry
from kgverify.errors import UserError
from kgverify.files.code_identity import Code
from kgverify.files.code_location import locate_code
from kgverify.program.limits import OURS, Dialect
from kgverify.progress import Progress, no_progress
from kgverify.ranking.draw import draw_candidates
from kgverify.ranking.rank import rank_candidates
from kgverify.runs.run import Pipeline, Run, identify_code, reference_pipeline, reference_triples
from kgverify.trace.model.columns import CandidateSet, Columns
from kgverify.trace.model.header import EngineInfo

T = TypeVar("T")

MakePipeline: TypeAlias = Callable[[Run, Sizes], Pipeline]
"""A function that makes the pipeline under test from a run and the sizes of its batch."""

Factory: TypeAlias = Callable[..., Any]
"""A function (program, limits, policy) -> engine, or (run, sizes) -> pipeline."""

METHODS: Final = "an engine has prove(candidates, progress) -> Columns and step(positions) -> Columns"
"""The signatures that error messages show."""


def compiled_maker(**options: Any) -> MakePipeline:
    """Return a maker of the evaluator, by default eager on the CPU. UserError for an unknown option."""
    return as_maker(make_entry(COMPILED, **({"mode": "eager", "device": "cpu"} | options)))


def make_for(run: Run, make: Factory) -> Pipeline:
    """Make an engine for a run with a function of (program, limits, policy)."""
    engine = make(run.graph.program, run.limits, run.policy)
    if hasattr(engine, "triples"):
        # The triples tell it the positives, in a dialect that treats corruptions differently.
        engine.triples = reference_triples(run)
    pipeline = adapt_pipeline(engine)
    return pipeline._replace(maker=make) if isinstance(make, EngineMaker) else pipeline


def list_capabilities(engine: object) -> frozenset[Capability]:
    """Return the capabilities of an engine of the table; for any other engine, the common ones."""
    entry = find_entry(engine) if isinstance(engine, str) else engine
    declared = getattr(entry, "capabilities", None)
    return declared if isinstance(declared, frozenset) else frozenset({Capability.PROVE, Capability.STEP})


def make_reference(run: Run, sizes: Sizes) -> Pipeline:
    """Make kgverify's own reference prover, which ignores sizes."""
    return reference_pipeline(run)


@dataclass(frozen=True)
class EngineSpec:
    """An engine by name: `compiled`, `reference`, or a third party's engine as `MODULE:NAME` or `FILE.py:NAME`.

    mode, device, faults: options of the compiled evaluator
    """

    name: str = COMPILED
    mode: str = "eager"
    device: str = "cpu"
    faults: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.name != COMPILED:
            return self.name
        return ", ".join([f"{self.name} ({self.mode}, {self.device})", *(f"fault {each}" for each in self.faults)])

    def resolve(self) -> "str | EngineMaker":
        """Return the maker of the evaluator, or the name of another engine."""
        if self.name != COMPILED:
            return self.name
        return make_entry(COMPILED, mode=self.mode, device=self.device, faults=self.faults)

    @property
    def is_own(self) -> bool:
        """True for an engine of kgverify."""
        return self.name in (COMPILED, REFERENCE, SEARCH, MODEL)


EAGER: Final = EngineSpec()
"""The eager evaluator without faults."""
PLAIN: Final = EngineSpec(REFERENCE)
"""kgverify's own reference prover."""


class Sides(NamedTuple):
    """The engine under test, and the engine to compare it with."""

    engine: EngineSpec = EAGER
    reference: EngineSpec = PLAIN

    def find_makers(self) -> tuple[MakePipeline, MakePipeline]:
        """Return the makers of both engines. UserError if kgverify cannot make one of them."""
        return find_maker(self.engine), find_maker(self.reference, "--reference")

    def identify_code(self) -> Code:
        """Return the identity of all code that affects the comparison."""
        built = [make_entry(COMPILED).find_built(each.mode) for each in self if each.name == COMPILED]
        return identify_code(self.foreign) | {each.name: each.digest for each in built if each is not None}

    @property
    def foreign(self) -> tuple[str, ...]:
        """The names of the engines of third parties."""
        return tuple(each.name for each in self if not each.is_own)

    def __str__(self) -> str:
        return f"{self.engine}, compared with {self.reference}"


AnyEngine: TypeAlias = EngineSpec | str | Factory
"""A specification, the name of one, or a factory of the engine."""


def find_maker(engine: AnyEngine, where: str = "engine") -> MakePipeline:
    """Return the maker of an engine. UserError if kgverify cannot make it."""
    return as_maker(find_factory(engine, where), where)


def find_factory(engine: AnyEngine, where: str) -> Factory:
    """Return the factory of an engine, which may be given by its name. UserError for an unknown name."""
    spec = EngineSpec(engine) if isinstance(engine, str) else engine
    found = spec.resolve() if isinstance(spec, EngineSpec) else spec
    if not isinstance(found, str):
        return found
    return make_reference if found == REFERENCE else find_entry(found, where) or load_factory(found, where)


def require_trust(engine: EngineSpec, where: str, option: str, *, named: Collection[object], trust: bool) -> None:
    """Raise UserError for a third party's engine that only a file names, since making it would run code that the file chose.

    where:  the file, and its line or field
    option: the argument with which the user can name the engine instead, `engine` or `reference`
    named:  the engines that the user named
    trust:  whether the user trusts the file
    """
    if trust or engine.is_own or engine.name in named:
        return
    raise UserError(
        f"names the engine {engine.name!r}, and to run it would import its code",
        where=where,
        fix=f"name an engine with --{option}; or, if you trust this file and the code that it names, add --trust"
        f" (in Python: {option}=... or trust=True)",
    )


def name_engine(engine: AnyEngine) -> str:
    """Return the name of an engine or of its factory."""
    if isinstance(engine, (str, EngineSpec)):
        return str(engine)
    return getattr(engine, "__name__", type(engine).__name__)


def name_with_place(engine: AnyEngine) -> str:
    """Return the name of an engine, with the file and the line of its class or function if known: `mine (mine.py:12)`."""
    found = locate_code(getattr(engine, "made_of", engine))
    return name_engine(engine) if found is None else f"{name_engine(engine)} ({found.file}:{found.line})"


def follows_semantics(engine: AnyEngine) -> bool:
    """Return whether an engine is one of kgverify's that take the steps of its semantics."""
    spec = EngineSpec(engine) if isinstance(engine, str) else engine
    return isinstance(spec, EngineSpec) and spec.name in (COMPILED, REFERENCE)


def find_dialect(engine: object) -> Dialect:
    """Return the dialect that an engine or its factory declares as its attribute `dialect`; else the default dialect.

    An engine given by name is loaded, unless it is one of kgverify's. UserError if it cannot be loaded.
    """
    return _find_declared(engine, "--engine", "dialect", OURS)


def find_support(engine: object) -> Support:
    """Return what an engine or its factory declares as its attribute `support`; else any program. UserError as above."""
    return _find_declared(engine, "--engine", "support", ANY_PROGRAM)


def find_limits(*engines: object) -> dict[str, int]:
    """Return the smallest `max_depth` and `max_atoms` that an engine and a reference declare. UserError as above."""
    sides = [*zip(engines, ("--engine", "--reference"), strict=False)]
    declared = {name: [_find_declared(*side, name, 0) for side in sides] for name in ("max_depth", "max_atoms")}
    return {name: min(filter(None, values)) for name, values in declared.items() if any(values)}


def _find_declared(engine: object, option: str, name: str, default: T) -> T:
    named = engine if isinstance(engine, str) else engine.name if isinstance(engine, EngineSpec) else ""
    made = load_factory(named, option) if named and not EngineSpec(named).is_own else engine
    declared = getattr(made, name, None)
    return declared if isinstance(declared, type(default)) else default


def as_maker(factory: Factory, where: str = "engine") -> MakePipeline:
    """Return a maker of pipelines that uses a factory.

    An engine may have its own functions `draw` and `rank` (see `adapt_pipeline`). UserError for anything else.
    """
    if isinstance(factory, EngineMaker):
        return lambda run, sizes: make_for(run, factory.planned_for(sizes))
    num = _count_parameters(factory)
    if num == 2:
        return factory
    if num == 3:
        return lambda run, sizes: make_for(run, factory)._replace(ignores_sizes=True)
    raise UserError(
        f"expected {SIGNATURE}, found {_describe(factory)}",
        where=where,
        fix=f"give it the parameters (program, limits, policy); {METHODS}",
    )


def adapt_pipeline(engine: Any) -> Pipeline:
    """Return the pipeline of a third party's engine, with its own functions for corruptions and ranks if it has them.

    Optional methods of an engine are:

    - draw(graph, split, queries, num_corruptions, seed) -> CandidateSet: the queries and their corruptions
    - rank(candidates, triples, tolerance) -> Rankings: the rank of each query among its corruptions

    kgverify's functions replace the methods that it lacks. UserError for anything that is not an engine.
    """
    adapted = adapt_engine(engine)
    draw, rank = (getattr(engine, name, None) for name in ("draw", "rank"))
    return Pipeline(
        adapted,
        draw if callable(draw) else draw_candidates,
        rank if callable(rank) else rank_candidates,
    )


def adapt_engine(engine: Any) -> Engine:
    """Add the optional parts of the protocol to an engine. UserError if it lacks `prove` or `step`."""
    for method, what in (("prove", "(candidates, progress) -> Columns"), ("step", "(positions) -> Columns")):
        if not callable(getattr(engine, method, None)):
            raise UserError(
                f"expected an engine with a method {method}{what}, found none",
                where=type(engine).__name__,
                fix="see help(kgverify.Engine), or make the engine with kgverify.engine_of",
            )
    if isinstance(getattr(engine, "info", None), EngineInfo) and _takes_progress(engine):
        whole: Engine = engine
        return whole
    return _Adapted(engine)


class _Adapted:
    """A wrapper for an engine that lacks `info`, or whose `prove` does not report progress. It keeps the engine's probes."""

    def __init__(self, engine: Any) -> None:
        self._engine = self.__wrapped__ = engine
        if callable(probe := getattr(engine, "probe", None)):
            self.probe = probe
        if callable(features := getattr(engine, "features", None)):
            self.features = features
        if (numbers := getattr(engine, "numbers", None)) is not None:
            self.numbers = numbers

    @property
    def info(self) -> EngineInfo:
        """The engine's own `info`, or one with the name of its class."""
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
    """Return the number of parameters without a default; 3 if it is unknown, -1 if the factory is not callable."""
    if not callable(factory):
        return -1
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return 3
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.kind in plain and each.default is inspect.Parameter.empty for each in parameters)


def _describe(factory: object) -> str:
    name = getattr(factory, "__qualname__", None) or f"an object of type {type(factory).__name__}"
    if not callable(factory):
        return f"{name}, which cannot be called"
    try:
        return f"{name}{inspect.signature(factory)}"
    except (TypeError, ValueError):
        return str(name)
