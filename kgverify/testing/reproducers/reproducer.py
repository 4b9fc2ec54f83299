"""A reproducer: a minimal problem, the difference that it shows, and the engine on which it shows it."""

import platform
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version

from kgverify.engines.table import COMPILED
from kgverify.errors import UserError, count_of
from kgverify.runs.engine_makers import EAGER, PLAIN, EngineSpec
from kgverify.testing.checking.failure import Failure, Signature
from kgverify.testing.problems.problem import Problem
from kgverify.version import __version__


@dataclass(frozen=True, kw_only=True)
class Reproducer:
    """A problem and the difference that it shows.

    signature:        of the difference; that of its first divergence is compared with it
    candidate, step:  where it shows; step -1 if it is not about a step
    expected, actual: both values as text, a line each
    lockstep:         whether every step was compared from the expected goal
    neighbour:        the change after which both sides agree; empty if none is known
    engine:           the engine under test
    reference:        the engine that it is compared with
    versions:         library name to version, of the run that made it
    notes:            comments for readers
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
    reference: EngineSpec = PLAIN
    versions: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def with_engine(self, engine: EngineSpec, reference: EngineSpec | None = None) -> "Reproducer":
        """Return the same reproducer for another engine, and for another reference if one is given."""
        return replace(self, engine=engine, reference=self.reference if reference is None else reference)

    @property
    def sides(self) -> str:
        """The engine under test, and the one that it is compared with."""
        return f"{self.engine}, compared with {self.reference}"


def make_reproducer(
    failure: Failure,
    engine: EngineSpec = EAGER,
    *,
    reference: EngineSpec = PLAIN,
    lockstep: bool = False,
    neighbour: str = "",
    notes: tuple[str, ...] = (),
) -> Reproducer:
    """Return the reproducer of a failure. UserError for one that needs other problems in its run: shrink it first."""
    if not failure.is_alone:
        raise UserError(
            f"fails only in one run with {count_of(len(failure.group) - 1, 'other problem')}",
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
        neighbour=neighbour,
        engine=engine,
        reference=reference,
        notes=notes,
        versions=_versions(engine, reference),
    )


def _lines(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else (str(value),)


def _versions(*engines: EngineSpec) -> dict[str, str]:
    versions = {"kgverify": __version__, "python": platform.python_version()}
    if any(each.name == COMPILED for each in engines):
        with suppress(PackageNotFoundError):
            versions["torch"] = version("torch")
    return versions
