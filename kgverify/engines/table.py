"""The table of engines, which maps names to makers.

Nothing that an engine needs is imported before it is made. Other packages add engines through entry points of the group
`kgverify.engines`.
"""

from collections.abc import Callable
from enum import StrEnum
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

from kgverify.engines.policy import Policy
from kgverify.engines.protocol import Engine, LeastModel, Sizes, Workload
from kgverify.errors import UserError
from kgverify.program.limits import Limits
from kgverify.program.program import Program

COMPILED: Final = "compiled"
REFERENCE: Final = "reference"
SEARCH: Final = "search"
MODEL: Final = "model"
GROUP: Final = "kgverify.engines"
"""The group of entry points through which packages add engines."""

_OWN: Final = {
    COMPILED: "kgverify.prover.evaluator:Evaluator",
    SEARCH: "kgverify.engines.search:SearchEngine",
    MODEL: "kgverify.engines.search:ModelEngine",
}
"""The engines of this package. The reference prover is not among them; the harness makes it."""


class Capability(StrEnum):
    """A capability of an engine.

    prove: it runs candidates to their ends; step: it takes one step from a given goal; stages: it shows the output of
    each stage; faults: faults can be planted in it; least_model: it computes the least model of a program; rank: it has
    its own functions for draws and ranks; repeat: a second run gives the same steps
    """

    PROVE = "prove"
    STEP = "step"
    STAGES = "stages"
    FAULTS = "faults"
    LEAST_MODEL = "least_model"
    RANK = "rank"
    REPEAT = "repeat"


class Built(NamedTuple):
    """Code that was compiled on this machine.

    name:   what it is: `native library`
    digest: the SHA-256 of the code, or of everything that determines it
    trial:  the file that records that the code was tried; None if nothing is kept
    """

    name: str
    digest: str
    trial: Path | None


@runtime_checkable
class EngineMaker(Protocol):
    """A maker of an engine in the table: a record of options, which is called with a program, limits and a policy.

    name:         its name in the table
    capabilities: the capabilities of the engine with these options
    compiles:     whether making the engine, or its first use, compiles code for minutes
    """

    @property
    def name(self) -> str:
        """The name in the table."""
        ...

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The capabilities of the engine."""
        ...

    @property
    def compiles(self) -> bool:
        """True if each new shape is compiled, which takes seconds."""
        ...

    @property
    def options(self) -> dict[str, Any]:
        """The options that differ from their defaults, by name, as plain values."""
        ...

    def __call__(self, program: Program, limits: Limits, policy: Policy) -> Engine:
        """Make the engine."""
        ...

    def planned_for(self, work: Workload | Sizes) -> "EngineMaker":
        """Return the same maker with the given sizes, or with sizes chosen for the work."""
        ...

    def find_built(self, mode: str) -> Built | None:
        """Return the code that was compiled on this machine for a mode; None if results do not depend on such code."""
        ...


class OwnEvaluator(EngineMaker, Protocol):
    """kgverify's own evaluator, with the services that it offers besides its engine."""

    def build_least_model(
        self, program: Program, *, device: str, most_work: float, must_stop: Callable[[], bool]
    ) -> LeastModel | None:
        """Return the least model of a program; None if it takes more work, does not fit, or needs torch."""
        ...

    def keep_device(self) -> Callable[[], None]:
        """Return a function that gives another thread the current GPU of this thread."""
        ...

    def join_processes(self) -> Any:
        """Join the processes that `torchrun` started with this one; None for a single process."""
        ...

    def list_modes(self) -> list[str]:
        """Return the modes that this machine has."""
        ...

    def uses_cuda(self) -> bool:
        """Return whether the evaluator runs on CUDA here."""
        ...

    def why_not_compiled(self) -> str | None:
        """Return the reason why `torch.compile` is switched off; None if it is not."""
        ...

    def catalogue(self) -> tuple[list[tuple[Any, list[str]]], list[Any]]:
        """Return the faults that can be planted, each with the evaluators that support it, and the composite faults."""
        ...


def list_names() -> tuple[str, ...]:
    """Return the names of the engines that this installation has."""
    return (*_OWN, REFERENCE, *_list_added())


@cache
def _list_added() -> dict[str, str]:
    return {point.name: point.value for point in entry_points(group=GROUP)}


def find_entry(name: str, where: str = "engine") -> Any | None:
    """Return the maker with this name, with its default options; None if the table does not contain the name.

    UserError if it cannot be imported.
    """
    entry = _load_entry(name, where)
    return entry() if isinstance(entry, type) and hasattr(entry, "planned_for") else entry


def _load_entry(name: str, where: str = "engine") -> Any | None:
    path = _OWN.get(name) or _list_added().get(name)
    if path is None:
        return None
    module, _, attribute = path.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"the engine {name!r} cannot be loaded: {error}", where=where, fix="install its package: pip install -e ."
        ) from error


def make_entry(name: str, **options: Any) -> OwnEvaluator:
    """Return the maker of an engine of this package with the given options. UserError for an option that it does not have."""
    maker: OwnEvaluator = _load_entry(name)(**options)  # type: ignore[misc]
    return maker


def find_class(name: str) -> type:
    """Return the class that records the options of an engine of this package. UserError if it cannot be imported."""
    found: type = _load_entry(name)  # type: ignore[assignment]
    return found
