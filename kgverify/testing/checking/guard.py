"""Distinguish the exceptions of an engine from those of kgverify, and limit its CPU time.

An engine that exceeds it hangs. An exception stops Python code. It cannot stop native code, so a process that may be
replaced ends itself.
"""

import faulthandler
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial, wraps
from pathlib import Path
from typing import Any, Final, ParamSpec, TextIO, TypeAlias, TypeVar

import numpy as np

from kgverify.engines.adapters.searching import Beams
from kgverify.engines.beams import SearchingEngine
from kgverify.engines.load_engine import (
    SIGNATURE,
    describe_raised,
    detail_raised,
    list_raised,
)
from kgverify.engines.protocol import (
    DescribedEngine,
    Engine,
    NumberedEngine,
    Positions,
    ProbedEngine,
    Sizes,
    StageOutputs,
)
from kgverify.errors import (
    InternalError,
    KgverifyError,
    MissingDependency,
    UserError,
    find_missing_dependency,
    first_line,
    keep_users_frames,
)
from kgverify.garbage_collection import without_garbage_collection
from kgverify.interrupts import is_interrupt
from kgverify.progress import Progress, no_progress
from kgverify.ranking.draw import draw_candidates
from kgverify.ranking.rank import rank_candidates
from kgverify.runs.delta_debugging import halve
from kgverify.runs.engine_makers import AnyEngine, MakePipeline, find_maker, follows_semantics, name_engine
from kgverify.runs.run import Pipeline, Run
from kgverify.testing.checking.failure import CRASH, HANG, REFUSED
from kgverify.testing.problems.merge import group_problems, merge
from kgverify.testing.problems.problem import Problem
from kgverify.trace.model.columns import FIELD_OF, CandidateSet, Columns, Rankings
from kgverify.trace.model.header import EngineInfo
from kgverify.trace.model.validate import check_columns

SECONDS: Final = 10.0
SECONDS_OF_TICK: Final = 0.01
"""Several times the duration of a tick on one core."""
PATIENCE: Final = 30
"""The factor for engines that may compile, or whose speed is unknown."""
NATIVE_PATIENCE: Final = 10
"""The seconds of real time within which a second of CPU time certainly passes."""

_nothing: TextIO | None = None
"""The null device, which receives the last traceback of a process that may be replaced."""


class EngineCrash(KgverifyError):
    """An engine raised an exception, ended the process, or returned an invalid result.

    situation: the exception's type, with the role of the engine if it is not the one under test
    """

    kind = CRASH

    def __init__(self, message: str, situation: str) -> None:
        self.situation = situation
        super().__init__(message)


class EngineRefusal(EngineCrash):
    """An engine declined a problem when it was made: it knows other names, or no rules of this form. The text says why."""

    kind = REFUSED


class EngineHang(EngineCrash):
    """The engine under test did not return in time."""

    kind = HANG

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no result within {seconds:,.0f} seconds of CPU time", "")


def find_limit(run: Run, sizes: Sizes, num_candidates: int, mode: str) -> float:
    """Return the seconds of CPU time within which an engine certainly derives some candidates of a run."""
    num_clauses = len(run.graph.train) + len(run.graph.rules)
    ticks_of_step = 1 + num_clauses / sizes.match_window
    turns = 1 + num_candidates / min(sizes.slots, sizes.pool)
    seconds = SECONDS + SECONDS_OF_TICK * run.limits.max_depth * turns * ticks_of_step
    return seconds * (1 if mode == "eager" else PATIENCE)


@contextmanager
def limit_time(seconds: float) -> Iterator[None]:
    """Raise EngineHang in the main thread after seconds of the process's CPU time; elsewhere, set no limit."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise EngineHang(seconds)

    before = signal.signal(signal.SIGVTALRM, stop)
    # Raise it repeatedly, since an engine may catch the exception.
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, 1.0)
    if _nothing is not None:
        faulthandler.dump_traceback_later(NATIVE_PATIENCE * seconds, exit=True, file=_nothing)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        if _nothing is not None:
            faulthandler.cancel_dump_traceback_later()


@contextmanager
def in_replaceable_process() -> Iterator[None]:
    """Let this process end itself if an engine does not return from native code."""
    global _nothing
    with Path(os.devnull).open("w", encoding="utf-8") as _nothing:
        try:
            yield
        finally:
            _nothing = None


OWN: Final = (draw_candidates, rank_candidates)
"""Functions of kgverify in a pipeline: their exceptions are not the engine's."""

P = ParamSpec("P")
T = TypeVar("T")

THE_REFERENCE: Final = "the reference"

SIGNATURES: Final = {
    "prove": "prove(candidates: CandidateSet, progress) -> Columns",
    "step": "step(positions: Positions) -> Columns",
    "take_beams": "take_beams(candidates: CandidateSet, beams: a list of Paths for each) -> Columns",
    "probe": "probe(position: Positions) -> dict of Stage to its output",
    "features": "features(columns: Columns) -> dict of name to an array, with a number for each candidate or each step",
    "numbers": "numbers: a property that returns an integer for each predicate, and one for each constant",
    "info": "info: a property that returns a kgverify.EngineInfo",
    "draw": "draw(graph, split, queries, num_corruptions, seed) -> CandidateSet",
    "rank": "rank(candidates, triples, tolerance) -> Rankings",
    "make": SIGNATURE,
}
"""The expected signature of each part of a pipeline."""

Refuse: TypeAlias = Callable[[str, str, BaseException], Exception]
"""(part, message, exception) -> the exception to raise instead. The part is a key of `SIGNATURES`."""


def guard(make_pipeline: MakePipeline, role: str = "") -> MakePipeline:
    """Return the same maker, but exceptions of the maker and of its pipelines become `EngineCrash` or `EngineRefusal`.

    role: the role of the engine, named in the crash's situation unless it is the engine under test
    """

    def refuse(part: str, message: str, error: BaseException) -> Exception:
        if missing := find_missing_dependency(error, role):
            return missing
        situation = TypeError.__name__ if isinstance(error, _WrongResult) else type(error).__name__
        situation = f"{situation} of {role}" if role else situation
        if part in SET_UP and isinstance(error, (NotImplementedError, UserError)):
            reason = error.message if isinstance(error, UserError) else str(error)
            return EngineRefusal(first_line(reason) or "not implemented", situation)
        return EngineCrash("\n".join([message, *list_raised(error)]), situation)

    return _replace_exceptions(_refuse_names(make_pipeline), refuse, is_limited=True)


SET_UP: Final = ("make", "numbers")
"""The parts of a pipeline in which an engine may decline a problem. Later exceptions are crashes."""


def _refuse_names(make_pipeline: MakePipeline) -> MakePipeline:
    """Return the same maker, but a KeyError for a name of the program is a refusal, not a mistake."""

    def make(run: Run, sizes: Sizes) -> Pipeline:
        try:
            return make_pipeline(run, sizes)
        except KeyError as error:
            symbols = run.graph.program.symbols
            if error.args and error.args[0] in symbols.predicate_ids.keys() | symbols.constant_ids.keys():
                raise NotImplementedError(f"unknown name {error}") from error
            raise

    return make


def explain(make_pipeline: MakePipeline, where: str, *, allows_unsupported: bool = False) -> MakePipeline:
    """Return the same maker, but exceptions of the maker and of its pipelines become a UserError with a fix.

    where:              the option and the name with which the user specified the engine
    allows_unsupported: whether NotImplementedError, with which an engine refuses a policy, is passed on unchanged

    The results of the engine are checked before they are compared.
    """

    def refuse(part: str, message: str, error: BaseException) -> Exception:
        if isinstance(error, UserError):
            located = error.where if error.where.startswith(where) else ": ".join(filter(None, (where, error.where)))
            kind = MissingDependency if isinstance(error, MissingDependency) else UserError
            return kind(error.message, where=located, fix=error.fix or SIGNATURES[part], details=error.details)
        if missing := find_missing_dependency(error, where):
            return missing
        if isinstance(error, NotImplementedError):
            if allows_unsupported:
                return error
            reason = f"does not support this: {first_line(str(error)) or part}"
            fix = "give another --policy, or rules and limits that it supports; or implement it"
            return UserError(reason, where=where, fix=fix, details=detail_raised(error))
        what = "making the engine" if part == "make" else f"its `{part}`"
        is_result = isinstance(error, _WrongResult)
        fix = f"repair it; expected {SIGNATURES[part]}"
        if is_result:
            return UserError(f"{what} returned a wrong result: {message}", where=where, fix=fix)
        return UserError(f"{what} failed: {describe_raised(error)}", where=where, fix=fix, details=detail_raised(error))

    return _replace_exceptions(make_pipeline, refuse, is_limited=False)


def find_explained(engine: AnyEngine, where: str) -> MakePipeline:
    """Return the maker of an engine whose mistakes become UserErrors. Exceptions of kgverify's own engines are bugs."""
    make = find_maker(engine, where)
    return make if follows_semantics(engine) else explain(make, f"{where} {name_engine(engine)}".strip())


def _replace_exceptions(make_pipeline: MakePipeline, refuse: Refuse, *, is_limited: bool) -> MakePipeline:
    """Return a maker whose exceptions are replaced, and which limits the time or checks all columns."""

    def make(run: Run, sizes: Sizes) -> Pipeline:
        def limit(num_candidates: int, mode: str) -> AbstractContextManager[None]:
            return limit_time(find_limit(run, sizes, num_candidates, mode)) if is_limited else nullcontext()

        with limit(0, ""):
            made = _call(refuse, "make", Pipeline, make_pipeline, run, sizes)
        return made._replace(
            engine=GuardedEngine(made.engine, limit, refuse, None if is_limited else run),
            draw=made.draw if made.draw in OWN else _guarded(refuse, "draw", CandidateSet, made.draw),
            rank=made.rank if made.rank in OWN else _guarded(refuse, "rank", Rankings, made.rank),
        )

    return make


class GuardedEngine:
    """An engine with a time limit, whose exceptions are replaced.

    It can be probed, and can take levels from given beams, if the original engine can.

    limit:  returns the context that limits the time for a number of candidates in a mode
    refuse: returns the exception that replaces an exception of the engine
    run:    if given, the ids and lengths of the engine's columns are checked, too
    """

    def __init__(
        self,
        engine: Engine,
        limit: Callable[[int, str], AbstractContextManager[None]],
        refuse: Refuse,
        run: Run | None = None,
    ) -> None:
        self._engine, self._limit, self._refuse, self._run = engine, limit, refuse, run
        # As `inspect.unwrap` reads it.
        self.__wrapped__ = engine
        if isinstance(engine, ProbedEngine):
            self.probe: Callable[[Positions], StageOutputs] = _guarded(refuse, "probe", dict, engine.probe)
        if isinstance(engine, SearchingEngine):
            self.take_beams: Callable[..., Columns] = partial(self._take_beams, engine.take_beams)
        if isinstance(engine, DescribedEngine):
            self.features: Callable[[Columns], Any] = _guarded(refuse, "features", object, engine.features)
        if isinstance(engine, NumberedEngine):
            self.numbers: Any = _call(refuse, "numbers", tuple, lambda: engine.numbers)

    @property
    def info(self) -> EngineInfo:
        """The engine's info."""
        return _call(self._refuse, "info", EngineInfo, lambda: self._engine.info)

    def prove(self, candidates: CandidateSet, progress: Progress = no_progress) -> Columns:
        """Prove the candidates."""
        with self._limit(len(candidates.query), self.info.mode):
            return self._check("prove", _call(self._refuse, "prove", Columns, self._engine.prove, candidates, progress))

    def step(self, positions: Positions) -> Columns:
        """Take one step from each position."""
        with self._limit(len(positions.depth), self.info.mode):
            return self._check("step", _call(self._refuse, "step", Columns, self._engine.step, positions))

    def _take_beams(self, take: Callable[..., object], candidates: CandidateSet, beams: Beams) -> Columns:
        with self._limit(sum(map(len, beams)), self.info.mode):
            return self._check("take_beams", _call(self._refuse, "take_beams", Columns, take, candidates, beams))

    def _check(self, part: str, columns: Columns) -> Columns:
        """Return columns if they are arrays of the right kinds and, with a run, of the right lengths and ids."""
        _call(self._refuse, part, object, _check_kinds, columns)
        if self._run is not None:
            program = self._run.graph.program
            sizes: Any = {"num_rules": len(program.rules), "num_facts": len(program.facts)}
            where = f"engine {self.info.name}: {part}"
            _call(self._refuse, part, object, check_columns, columns, where, **sizes)
        return columns


def _check_kinds(columns: Columns) -> None:
    """Raise `_WrongResult` for a column whose kind (whole numbers, numbers) or shape differs from the field's."""
    for array in (array for level in columns for array in level):
        if not isinstance(array, np.ndarray):
            raise _WrongResult(f"expected ndarray, found {type(array).__name__}")
    levels: tuple[Any, ...] = columns[:3]
    for title, level in zip(("candidates", "steps", "resolvents"), levels, strict=True):
        for name, array in level._asdict().items():
            field = FIELD_OF.get(f"{title}/{name}")
            if field is None:
                continue
            kinds = "iub" if np.dtype(field.dtypes[-1]).kind in "iu" else "iubf"
            num_dimensions = 1 + bool(field.width)
            if (
                array.dtype.kind not in kinds
                or array.ndim != num_dimensions
                or array.shape[1:] != (3,) * bool(field.width)
            ):
                expected = np.dtype(field.dtypes[-1]).name
                raise _WrongResult(
                    f"{title}.{name} is {array.dtype} {list(array.shape)}, expected {expected} {field.shape_text}"
                )


class _WrongResult(TypeError):
    """A result of the wrong type or shape."""


class CheckBug(InternalError):
    """A bug of kgverify that occurred while problems were checked.

    problems: the smallest group found that triggers it in one run
    """

    def __init__(self, message: str, problems: tuple[Problem, ...] = ()) -> None:
        self.problems = problems
        super().__init__(message)


def locate_bug(problems: Sequence[Problem], error: Exception, again: Callable[[Sequence[Problem]], object]) -> CheckBug:
    """Return the error for a bug of kgverify that problems triggered in one run, narrowed down by halving.

    again: repeats the work that triggered the bug, on some of the problems
    """

    def fails(some: Sequence[Problem]) -> bool:
        try:
            again(some)
        except Exception as other:
            return type(other) is type(error)
        return False

    return CheckBug(f"{type(error).__name__}: {error}", tuple(halve(problems, fails)))


def _guarded(refuse: Refuse, part: str, kind: type[T], function: Callable[P, object]) -> Callable[P, T]:
    @wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> T:
        return _call(refuse, part, kind, function, *arguments, **named)

    return call


def _call(
    refuse: Refuse, part: str, kind: type[T], function: Callable[P, object], *arguments: P.args, **named: P.kwargs
) -> T:
    """Call a function of an engine, whose result must be of a kind, and replace its exceptions."""
    own = os.getpid()
    try:
        result = function(*arguments, **named)
        if not isinstance(result, kind):
            expected = "a pipeline" if kind is Pipeline else kind.__name__
            raise _WrongResult(f"expected {expected}, found {type(result).__name__}")
        return result
    except EngineCrash:
        raise
    except BaseException as error:
        if is_interrupt(error):
            raise
        if (refused := refuse(part, str(error), error)) is not error:
            refused.__cause__ = error
        raise keep_users_frames(refused)  # noqa: B904  its cause is set, or it is the engine's own
    finally:
        if os.getpid() != own:
            # The engine has forked: the work must not be done twice.
            os._exit(1)


def find_refused(makers: Iterable[MakePipeline], problems: Sequence[Problem]) -> dict[int, str]:
    """Return why one of some engines declines a problem, for the indices of the problems that it declines.

    The engines are made for all problems in one run, and for each half of them if one declines.
    """
    refused: dict[int, str] = {}

    def split(indices: Sequence[int]) -> None:
        if (reason := ask([problems[i] for i in indices])) is None:
            return
        if len(indices) == 1:
            refused[indices[0]] = reason
            return
        middle = len(indices) // 2
        split(indices[:middle])
        split(indices[middle:])

    def ask(some: Sequence[Problem]) -> str | None:
        merged = merge(some)
        for make in makers:
            try:
                guard(make)(merged.run, merged.sizes)
            except EngineRefusal as refusal:
                return str(refusal)
            except (EngineCrash, MissingDependency):
                # The problems will show it.
                pass
        return None

    for group in group_problems(problems):
        split(group)
    return refused


def skip_refused(
    makers: Iterable[MakePipeline],
    problems: Sequence[Problem],
    group: Sequence[int],
    reason: str,
    refused: dict[int, str],
) -> list[Sequence[int]]:
    """Add the problems of a refused group that an engine declines to `refused`, and return the others as groups.

    reason: the reason why the group was refused
    """
    found = find_refused(makers, [problems[i] for i in group]) if len(group) > 1 else {0: reason}
    refused |= {group[at]: why for at, why in found.items()}
    middle = len(group) // 2
    # If an engine declines no single problem, it declines the common run.
    parts = [[i for i in group if i not in refused]] if found else [group[:middle], group[middle:]]
    return [part for part in parts if part]


def make_once(make_pipeline: MakePipeline, problem: Problem) -> EngineInfo:
    """Make an engine for a problem, and return its info. Exceptions of the engine are passed on."""
    merged = merge([problem])
    return make_pipeline(merged.run, merged.sizes).engine.info


@without_garbage_collection()
def check_made(make_pipeline: MakePipeline, where: str, problem: Problem) -> None:
    """Raise UserError if an engine cannot be made for a simple problem, which would otherwise look like a crash."""
    with suppress(NotImplementedError):
        # An unsupported policy or name is not a mistake.
        make_once(explain(_refuse_names(make_pipeline), where, allows_unsupported=True), problem)
