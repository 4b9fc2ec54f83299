"""A fault as data, the parts of a run that it may change, and the registry of the functions that plant faults."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import wraps
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from kgverify.engines.protocol import Engine
from kgverify.program.limits import OURS, Dialect, Limits
from kgverify.program.outcomes import DifferenceClass, Stage
from kgverify.ranking.draw import Draw
from kgverify.ranking.rank import Rank
from kgverify.step.search import SearchStages

FACT_CAP: Final = 50
"""The number of facts of each predicate that `fact-cap` keeps."""

CONSTRUCTED: Final = "constructed"
"""`seen_in` of a fault that was made up for the catalogue."""


def identity(engine: Engine) -> Engine:
    """Return the engine: the default wrapper, which changes nothing."""
    return engine


class Plant(NamedTuple):
    """The parts of a run that a fault may change.

    A fault maps one `Plant` to another, so faults compose.

    stages:      the functions of a step: of the evaluator on tensors, with the pool around it, or of the plain
                 evaluator
    searching:   the functions of a search of the plain evaluator
    wrap_engine: a layer between the engine and its caller; normally `identity`
    """

    limits: Limits
    stages: Any
    searching: SearchStages
    wrap_engine: Callable[[Engine], Engine]
    draw: Draw
    rank: Rank

    def replace(self, part: str, faulty: Callable[..., Any]) -> "Plant":
        """Return the same parts with a stage, `draw` or `rank` replaced by `faulty`, which first receives the sound one."""
        name = next((name for name in ("stages", "searching") if part in getattr(self, name)._fields), "")
        owner: Any = getattr(self, name) if name else self
        sound = getattr(owner, part)
        replaced = owner._replace(**{part: wraps(faulty)(lambda *given: faulty(sound, *given))})
        planted: Plant = self._replace(**{name: replaced}) if name else replaced
        return planted


Planter: TypeAlias = Callable[[Plant], Plant]
Function = TypeVar("Function", bound=Callable[..., Any])


class Carrier(StrEnum):
    """The part of a run that carries a fault: the stages of an evaluator, or the code around any evaluator."""

    TENSORS = "torch"
    PLAIN = "plain"
    ANY = "any"


PLANTERS: Final[dict[Carrier, dict[str, Planter]]] = {carrier: {} for carrier in Carrier}
"""The functions that plant faults, by the name of the fault; the modules that define faults fill this table."""


def plants(fault: str, carrier: Carrier = Carrier.TENSORS) -> Callable[[Planter], Planter]:
    """Register a function that plants a fault."""

    def register(planter: Planter) -> Planter:
        PLANTERS[carrier][fault] = planter
        return planter

    return register


def replaces(
    fault: str, part: str, then: Planter = lambda plant: plant, *, carrier: Carrier = Carrier.TENSORS
) -> Callable[[Function], Function]:
    """Register a function as a fault that takes the place of a part of a run.

    Args:
        fault: The fault's name in the catalogue.
        part: A stage, `draw` or `rank`. The function is called with the sound one, and with the arguments of that.
        then: A further change of the run.
        carrier: The evaluator whose stage it is; any evaluator has `draw` and `rank`.
    """

    def register(faulty: Function) -> Function:
        planter: Planter = lambda plant: then(plant.replace(part, faulty))  # noqa: E731
        plants(fault, Carrier.ANY if part in Plant._fields else carrier)(planter)
        return faulty

    return register


@dataclass(frozen=True)
class Fault:
    """A named defect.

    stage:         the stage of the defect; `recycle` if it makes a derivation depend on its surroundings
    expected_kind: the class that a report should assign to its differences
    breaks:        what goes wrong
    needs:         the properties of a graph or a run that it needs to manifest
    dialect:       a dialect in which it manifests; that of a fault of a search has one
    seen_in:       the place where such a defect was found
    """

    name: str
    stage: Stage
    expected_kind: DifferenceClass
    breaks: str
    needs: str
    dialect: Dialect = OURS
    seen_in: str = CONSTRUCTED


@dataclass(frozen=True)
class Composite:
    """Several faults under one name, planted in order, as in a system that had all of them."""

    name: str
    parts: tuple[str, ...]
    breaks: str
    seen_in: str
