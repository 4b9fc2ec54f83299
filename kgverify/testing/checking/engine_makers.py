"""Engines under test: specifications that can be written down, and functions that make pipelines from them."""

import hashlib
import importlib
import importlib.util
import inspect
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeAlias

from kgverify.engines.native.choice import NATIVE
from kgverify.engines.policy import SHORTEST
from kgverify.engines.protocol import Engine, Positions, Progress, no_progress
from kgverify.errors import UserError, describe_error, find_missing_dependency, suggest
from kgverify.faults.catalogue import find_faults
from kgverify.faults.fault import Fault
from kgverify.files.code_identity import Code, identify_engines
from kgverify.program.dialect import OURS, Dialect
from kgverify.program.limits import Limits
from kgverify.ranking.corrupt import draw_candidates
from kgverify.ranking.rank import rank_candidates
from kgverify.runs.interrupts import is_interrupt
from kgverify.runs.run import Pipeline, Run, identify_code
from kgverify.testing.problems.merge import make_reference, merge
from kgverify.testing.problems.problem import PolicySpec, Problem, Sizes
from kgverify.trace.model.columns import CandidateSet, Columns
from kgverify.trace.model.header import EngineInfo

if TYPE_CHECKING:
    from kgverify.engines.compiled.state import Layout

MakePipeline: TypeAlias = Callable[[Run, Sizes], Pipeline]
"""A function that makes the pipeline under test for a run and the sizes of its batch."""


def compiled_maker(*, mode: str = "eager", device: str = "cpu", faults: Sequence[str | Fault] = ()) -> MakePipeline:
    """Return a maker of the compiled evaluator with some faults, by name or as records. UserError for an unknown name.

    With a `mode` other than eager each run is a compilation.
    """
    planted = tuple(find_faults([each])[0] if isinstance(each, str) else each for each in faults)

    def make(run: Run, sizes: Sizes) -> Pipeline:
        from kgverify.faults.plant import pipeline_with_faults

        def choose_sizes() -> "Layout":
            from kgverify.engines.compiled.layout import choose_layout

            limits = run.limits
            return choose_layout(
                limits,
                slots=sizes.slots,
                atoms=limits.max_atoms + sizes.atoms,
                resolvents=limits.max_resolvents + sizes.resolvents,
                match_window=sizes.match_window,
                score_window=max(limits.max_resolvents, sizes.score_window),
                pool=sizes.pool,
            )

        return pipeline_with_faults(run, planted, mode=mode, device=device, layout=choose_sizes)

    return make


COMPILED: Final = "compiled"
REFERENCE: Final = "reference"
SIGNATURE: Final = "a class, or a function of (program, limits, policy), that makes an engine"
METHODS: Final = "an engine has prove(candidates, progress) -> Columns and step(positions) -> Columns"
"""The signatures that error messages show."""
MAX_FRAMES: Final = 4
MAX_DETAILS: Final = 24
"""The lines of an exception's message that an error quotes."""
_COMPILED_FRAME: Final = re.compile(r'File "([^"]+)", line (\d+), in (.+)')
_PACKAGES: Final = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_OWN_FILES: Final = str(Path(__file__).parents[2])
_VALUES: Final = f"give `{COMPILED}`, `{REFERENCE}`, MODULE:NAME or FILE.py:NAME, {SIGNATURE}"


class EngineSpec(NamedTuple):
    """The name of an engine: `compiled`, `reference`, or `MODULE:NAME` or `FILE.py:NAME` for a third party's.

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

    @property
    def is_own(self) -> bool:
        """True for an engine of kgverify, which follows its semantics."""
        return self.name in (COMPILED, REFERENCE)


EAGER: Final = EngineSpec()
"""The eager evaluator without faults."""
PLAIN: Final = EngineSpec(REFERENCE)
"""kgverify's own reference prover."""


class Sides(NamedTuple):
    """The engine under test, and the one that it is compared with."""

    engine: EngineSpec = EAGER
    reference: EngineSpec = PLAIN

    def find_makers(self) -> tuple[MakePipeline, MakePipeline]:
        """Return the makers of both. UserError if kgverify cannot make one of them."""
        return find_maker(self.engine), find_maker(self.reference, "--reference")

    def identify_code(self) -> Code:
        """Return the identity of all code that decides how both sides compare."""
        mode = NATIVE if NATIVE in (each.mode for each in self if each.name == COMPILED) else ""
        return identify_code(self.foreign, mode=mode)

    @property
    def foreign(self) -> tuple[str, ...]:
        """The names of the engines of third parties."""
        return tuple(each.name for each in self if not each.is_own)

    def __str__(self) -> str:
        return f"{self.engine}, compared with {self.reference}"


Factory: TypeAlias = Callable[..., Any]
"""A function (program, limits, policy) -> engine, or (run, sizes) -> pipeline."""

AnyEngine: TypeAlias = EngineSpec | str | Factory
"""A specification, its name, or what makes the engine."""


def find_maker(engine: AnyEngine, where: str = "--engine") -> MakePipeline:
    """Return the maker of an engine. UserError if kgverify cannot make it."""
    spec = EngineSpec(engine) if isinstance(engine, str) else engine
    if not isinstance(spec, EngineSpec):
        return as_maker(spec, where)
    if spec.name == COMPILED:
        return compiled_maker(mode=spec.mode, device=spec.device, faults=spec.faults)
    if spec.name == REFERENCE:
        return make_reference
    return as_maker(load_factory(spec.name, where), where)


def require_trust(engine: EngineSpec, where: str, option: str, *, named: Collection[object], trust: bool) -> None:
    """Raise UserError for a third party's engine that only a file names: making it would run code of the file's choice.

    where:  the file, and its line or field
    option: by which the user can name an engine instead
    named:  the engines that the user named
    trust:  whether the user trusts the file
    """
    if trust or engine.is_own or engine.name in named:
        return
    raise UserError(
        f"names the engine {engine.name!r}, and to run it would import its code",
        where=where,
        fix=f"name an engine with {option}; or, if you trust this file and the code that it names, add --trust"
        " (in Python: trust=True)",
    )


def name_engine(engine: AnyEngine) -> str:
    """Return the name of an engine, or of what makes it."""
    if isinstance(engine, (str, EngineSpec)):
        return str(engine)
    return getattr(engine, "__name__", type(engine).__name__)


def follows_semantics(engine: AnyEngine) -> bool:
    """Return whether an engine is one of kgverify's, so that everything true of its semantics is true of it."""
    spec = EngineSpec(engine) if isinstance(engine, str) else engine
    return spec.is_own if isinstance(spec, EngineSpec) else False


def find_dialect(engine: object) -> Dialect:
    """Return the dialect that an engine, or what makes it, declares as its attribute `dialect`; else the default one.

    An engine that is named is loaded, unless it is one of kgverify's. UserError if it cannot be.
    """
    name = engine if isinstance(engine, str) else engine.name if isinstance(engine, EngineSpec) else ""
    made = load_factory(name, "--engine") if name and name not in (COMPILED, REFERENCE) else engine
    declared = getattr(made, "dialect", None)
    return declared if isinstance(declared, Dialect) else OURS


def load_factory(name: str, where: str, kind: str = "") -> Any:
    """Import `MODULE:NAME`, also from the current folder, or `FILE.py:NAME`. UserError if it cannot be loaded.

    kind: what the name must stand for, if not for something that makes an engine

    This runs code: for the name of an engine that a file gives, call `require_trust` first.
    """
    module_name, _, path = name.rpartition(":")
    is_file = module_name.endswith(".py") and ("/" in module_name or Path(module_name).is_file())
    if not path or not module_name or not (is_file or re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", module_name)):
        if kind:
            raise UserError(f"kgverify cannot import {name!r}", where=where, fix=f"name {kind} as path/to/file.py:NAME")
        raise UserError(
            f"kgverify cannot make the engine {name!r}",
            where=where,
            fix=suggest(name, (COMPILED, REFERENCE)) or _VALUES,
        )
    try:
        with refuse_exit():
            module = _import_file(Path(module_name), where) if is_file else _import_module(module_name)
        # What was imported is what was on disk now.
        identify_engines([name])
    except UserError:
        raise
    except BaseException as error:
        if is_interrupt(error):
            raise
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module_name}.".startswith(f"{error.name}."):
            if module_name.endswith(".py"):
                raise UserError(f"no such file {module_name!r}", where=where, fix="check the path") from None
            raise UserError(
                f"cannot import {module_name!r}: {error}",
                where=where,
                fix="run this where Python finds the module, or name its file: path/to/file.py:NAME",
            ) from None
        raise UserError(
            f"{module_name!r} cannot be imported: {describe_raised(error)}",
            where=where,
            fix="repair the module; importing it must neither raise an exception nor exit",
        ) from None
    found: Any = module
    for part in path.split("."):
        known = dir(found)
        found = getattr(found, part, None)
        if found is None:
            raise UserError(
                f"{module_name!r} has no {path!r}", where=where, fix=suggest(part, known) or f"name {kind or SIGNATURE}"
            )
    return found


@contextmanager
def refuse_exit() -> Iterator[None]:
    """Let `os._exit` raise SystemExit in this process until the context ends: a test run would end without a failure."""
    end, own = os._exit, os.getpid()

    def refuse(status: int) -> NoReturn:
        if os.getpid() != own:
            end(status)
        raise SystemExit(status)

    os._exit = refuse
    try:
        yield
    finally:
        os._exit = end


def _import_module(name: str) -> Any:
    here = str(Path.cwd())
    # The current folder may be a stranger's: it is searched only if the module is there.
    is_here = PathFinder.find_spec(name.partition(".")[0], [here]) is not None
    with _searched_first(here) if is_here else nullcontext():
        return importlib.import_module(name)


@contextmanager
def _searched_first(folder: str) -> Iterator[None]:
    """Find modules in a folder before all others until the context ends, and after all others from then on.

    An engine may import its neighbours later, but nothing in its folder may replace an installed module.
    """
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        if folder not in sys.path:
            sys.path.append(folder)


def _import_file(path: Path, where: str) -> Any:
    """Import a file, under the name by which others in its folder import it unless another module has this name."""
    path = path.resolve()
    if not path.is_file():
        raise UserError(f"there is no file {path.name!r}", where=where, fix=f"give FILE.py:NAME, {SIGNATURE}")
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and Path(file).name == path.name and Path(file).resolve() == path:
            return module
    name = path.stem
    if name in sys.modules or not name.isidentifier():
        name = re.sub(r"\W", "_", name) + "_" + hashlib.sha256(str(path).encode()).hexdigest()[:8]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        with _searched_first(str(path.parent)):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def describe_raised(error: BaseException) -> str:
    """Return the type and the message of an exception, and the file and the line that raised it."""
    if isinstance(error, SystemExit):
        text = f"it ended the process (SystemExit: {error.code})"
    else:
        text = describe_error(error)
    if isinstance(error, SyntaxError) and error.filename:
        return f"{text} ({error.filename}:{error.lineno})"
    frames = _find_frames(error)
    return f"{text} ({frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name})" if frames else text


def detail_raised(error: BaseException) -> list[str]:
    """Return the lines of the user's code that led to an exception, the innermost first, and the rest of its message."""
    frames = [
        f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line or ''}"
        for frame in reversed(_find_frames(error))
    ]
    rest = [line.rstrip() for line in str(error).strip().split("\n")[1:] if line.strip()]
    return [*(f"from {each}" for each in frames[:MAX_FRAMES]), *rest[:MAX_DETAILS]]


def _find_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the frames of an exception in the user's code, the innermost last; without such frames, those in packages."""
    every = [
        frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(("<", _OWN_FILES))
    ]
    # torch names the line that it compiled in the message, and not in the traceback.
    for path, number, name in _COMPILED_FRAME.findall(str(error).partition("from user code")[2]):
        every.append(traceback.FrameSummary(path, int(number), name))
    return [frame for frame in every if not frame.filename.startswith(_PACKAGES)] or every


def as_maker(factory: Factory, where: str = "engine") -> MakePipeline:
    """Return the maker of pipelines for a factory.

    An engine may bring its own functions `draw` and `rank` (see `adapt_pipeline`). UserError for anything else.
    """
    num = _count_parameters(factory)
    if num == 2:
        return factory
    if num == 3:
        return lambda run, sizes: adapt_pipeline(factory(run.graph.program, run.limits, run.policy))
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

    kgverify's functions are used for those that it lacks. UserError for anything but an engine.
    """
    adapted = adapt_engine(engine)
    draw, rank = (getattr(engine, name, None) for name in ("draw", "rank"))
    return Pipeline(
        adapted,
        draw if callable(draw) else draw_candidates,
        rank if callable(rank) else rank_candidates,
    )


def adapt_engine(engine: Any) -> Engine:
    """Return the engine with the optional parts of the protocol added. UserError if it lacks `prove` or `step`."""
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


def find_supported(make_pipeline: MakePipeline, problems: Sequence[Problem]) -> list[int]:
    """Return the indices of the problems that an engine supports, which is made once for each policy with each limits.

    An engine does not support these if it raises NotImplementedError or, except for the policy `shortest`, UserError.
    """
    is_supported: dict[tuple[PolicySpec, Limits], bool] = {}
    for problem in problems:
        settings = problem.policy, problem.limits
        if settings in is_supported:
            continue
        is_supported[settings] = True
        try:
            make_once(make_pipeline, problem)
        except NotImplementedError:
            is_supported[settings] = False
        except BaseException as error:
            pass_on(error)
            # Any other error is a crash, which the problems show.
            if isinstance(error, UserError):
                is_supported[settings] = problem.policy.name == SHORTEST.name
    return [i for i, problem in enumerate(problems) if is_supported[problem.policy, problem.limits]]


def pass_on(error: BaseException) -> None:
    """Raise an exception that is not the engine's own: a Ctrl-C, or that a package cannot be imported."""
    if is_interrupt(error):
        raise error
    if missing := find_missing_dependency(error):
        raise missing from error


def make_once(make_pipeline: MakePipeline, problem: Problem) -> EngineInfo:
    """Make an engine for a problem, and return its info, or raise what it raises."""
    merged = merge([problem])
    return make_pipeline(merged.run, merged.sizes).engine.info


class _Adapted:
    """An engine without `info`, or whose `prove` does not report its progress; it can be probed if the engine can."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        if callable(probe := getattr(engine, "probe", None)):
            self.probe = probe
        if callable(features := getattr(engine, "features", None)):
            self.features = features

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


def _describe(factory: object) -> str:
    name = getattr(factory, "__qualname__", None) or f"an object of type {type(factory).__name__}"
    if not callable(factory):
        return f"{name}, which cannot be called"
    try:
        return f"{name}{inspect.signature(factory)}"
    except (TypeError, ValueError):
        return str(name)
