"""Reproducers: a minimal problem, what went wrong with it, and with which engine; made, and run again."""

import platform
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version

from kgverify import __version__
from kgverify.comparison.result import Verdict
from kgverify.errors import UserError
from kgverify.testing.checking.check import judge
from kgverify.testing.checking.engine_spec import COMPILED, EAGER, EngineSpec, make_pipeline
from kgverify.testing.checking.failure import UNDECIDED, Failure, Signature, is_same_way
from kgverify.testing.checking.pipelines import MakePipeline
from kgverify.testing.problems.problem import Problem
from kgverify.testing.shrinking.shrink import Shrunk


@dataclass(frozen=True, kw_only=True)
class Reproducer:
    """A problem with the difference that is expected of it.

    signature:        of the difference; its first divergence is compared with it
    candidate, step:  where it shows; step -1 for none
    expected, actual: both values, a line each, as people read them
    lockstep:         whether every step was compared from the expected goal
    neighbour:        the change after which both sides agree; empty where none is known
    versions:         library name to version, of the run that made it
    notes:            lines for people
    """

    problem: Problem
    signature: Signature
    candidate: str = ""
    step: int = -1
    expected: tuple[str, ...] = ()
    actual: tuple[str, ...] = ()
    message: str = ""
    lockstep: bool = False
    neighbour: str = ""
    engine: EngineSpec = EAGER
    versions: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def with_engine(self, engine: EngineSpec) -> "Reproducer":
        """The same for another engine."""
        return replace(self, engine=engine)

    def describes(self, failure: Failure) -> bool:
        """Whether a failure has the same signature, in the same place, with the same two values."""
        found = reproducer_of(failure)
        return (found.signature, found.candidate, found.step, found.expected, found.actual) == (
            self.signature,
            self.candidate,
            self.step,
            self.expected,
            self.actual,
        )


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What running a reproducer again came to; `failure` is None where both sides agree."""

    reproducer: Reproducer
    failure: Failure | None

    @property
    def verdict(self) -> Verdict:
        """AGREE, DIVERGE, or INCONCLUSIVE where nothing could be compared."""
        if self.failure is None:
            return Verdict.AGREE
        return Verdict.INCONCLUSIVE if self.failure.signature.kind == UNDECIDED else Verdict.DIVERGE

    @property
    def is_same(self) -> bool:
        """Whether it diverges in the same way."""
        return self.failure is not None and is_same_way(self.failure.signature, self.reproducer.signature)

    def __str__(self) -> str:
        """For people: how it came out, with both values."""
        told = self.reproducer
        if self.failure is None:
            return f"AGREE   no longer: {told.signature}"
        found = reproducer_of(self.failure)
        if self.is_same:
            first = f"{self.verdict.value}   still, and in the same way: {told.signature}"
        else:
            first = f"{self.verdict.value}   in another way: {found.signature}\n   was         {told.signature}"
        lines = [first]
        if found.candidate:
            lines.append(f"   candidate   {found.candidate}" + (f", step {found.step}" if found.step >= 0 else ""))
        lines += _label("expected", found.expected) + _label("actual", found.actual)
        if found.message:
            lines += _label("message", tuple(found.message.splitlines()))
        return "\n".join(lines)


def reproducer_of(failure: Failure, engine: EngineSpec = EAGER, *, lockstep: bool = False) -> Reproducer:
    """The reproducer of a failure. UserError for one that takes company: shrink it first."""
    if not failure.is_alone:
        raise UserError(
            f"fails in the company of {len(failure.company) - 1} other problems, not alone",
            where="reproducer",
            fix="shrink the failure first",
        )
    divergence = failure.divergence
    return Reproducer(
        problem=failure.problem,
        signature=failure.signature,
        candidate=divergence.atom if divergence else "",
        step=divergence.step if divergence else -1,
        expected=_lines(divergence.expected) if divergence else (),
        actual=_lines(divergence.actual) if divergence else (),
        message=failure.message,
        lockstep=lockstep,
        engine=engine,
        versions=_versions(engine),
    )


def reproducer_of_shrunk(
    shrunk: Shrunk, engine: EngineSpec = EAGER, *, lockstep: bool = False, notes: tuple[str, ...] = ()
) -> Reproducer:
    """The reproducer of what a shrink came to, with its neighbour. UserError as of `reproducer_of`."""
    made = reproducer_of(shrunk.failure, engine, lockstep=lockstep)
    return replace(made, neighbour=shrunk.neighbour.change if shrunk.neighbour else "", notes=notes)


def replay(reproducer: Reproducer, maker: MakePipeline | None = None) -> Replay:
    """Run a reproducer again, on the engine it names unless another is given. UserError if that cannot be made."""
    make = maker or make_pipeline(reproducer.engine, "reproducer: engine")
    return Replay(reproducer=reproducer, failure=judge(reproducer.problem, make, lockstep=reproducer.lockstep))


def assert_agrees(reproducer: Reproducer, maker: MakePipeline | None = None) -> None:
    """For tests: AssertionError, with the first cause, unless both sides agree on the reproducer's problem."""
    found = replay(reproducer, maker)
    if found.failure is not None:
        raise AssertionError(f"{reproducer.engine}\n{found}\n\n{reproducer.problem}")


def _lines(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else (str(value),)


def _label(name: str, lines: tuple[str, ...]) -> list[str]:
    return [f"   {name if not i else '':<11} {line}" for i, line in enumerate(lines)]


def _versions(engine: EngineSpec) -> dict[str, str]:
    versions = {"kgverify": __version__, "python": platform.python_version()}
    if engine.name == COMPILED:
        with suppress(PackageNotFoundError):
            versions["torch"] = version("torch")
    return versions
