"""A fault as data, and the parts of a run that it may change."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from kgverify.comparison.result import DifferenceClass
from kgverify.engines.protocol import Engine
from kgverify.program.stages import Stage
from kgverify.runs.run import Draw, Rank, Run

if TYPE_CHECKING:
    from kgverify.engines.compiled.stages.stage_functions import Stages

CONSTRUCTED: Final = "constructed"
"""`seen_in` of a fault that was made up for the catalogue."""


def identity(engine: Engine) -> Engine:
    """Return the engine: the default wrapper, which changes nothing."""
    return engine


class Plant(NamedTuple):
    """The parts of a run that a fault may change. A fault takes one and returns another, so faults compose.

    stages:      the functions of a step, and of the pool around it
    wrap_engine: a layer between the engine and its caller; normally `identity`
    """

    run: Run
    stages: "Stages"
    wrap_engine: Callable[[Engine], Engine]
    draw: Draw
    rank: Rank

    def with_stages(self, **stages: Callable[..., Any]) -> "Plant":
        """Return the same parts with some stages replaced."""
        return self._replace(stages=self.stages._replace(**stages))


Planter: TypeAlias = Callable[[Plant], Plant]


@dataclass(frozen=True)
class Fault:
    """A named defect.

    stage:         the stage that it is in; `recycle` if a derivation then depends on what surrounds it
    expected_kind: the class that a report should give its differences
    breaks:        what goes wrong
    needs:         what a graph or a run must have for it to manifest
    plant:         the function that plants it
    seen_in:       where such a defect was met
    """

    name: str
    stage: Stage
    expected_kind: DifferenceClass
    breaks: str
    needs: str
    plant: Planter
    seen_in: str = CONSTRUCTED


@dataclass(frozen=True)
class Composite:
    """Several faults under one name, planted in order: a system that had them all."""

    name: str
    parts: tuple[str, ...]
    breaks: str
    seen_in: str
