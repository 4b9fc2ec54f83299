"""What a fault is: a named defect, and where the code that plants it stands."""

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

from kgverify.comparison.result import DifferenceClass
from kgverify.program.stages import Stage

if TYPE_CHECKING:
    from kgverify.faults.plant import Plant

CONSTRUCTED: Final = "constructed"
"""`seen_in` of a fault that was made up for the catalogue."""


@dataclass(frozen=True)
class Fault:
    """A named defect.

    stage:         where it is; `recycle` if a derivation then depends on what surrounds it
    breaks:        what goes wrong
    seen_in:       where such a defect was met
    expected_kind: the class that a report should give its differences
    needs:         what a graph or a run must have for it to manifest
    function:      `module.function` of this package: from a `Plant` to one with the fault. By name, so that the
                   catalogue can be read without torch
    """

    name: str
    stage: Stage
    breaks: str
    seen_in: str
    expected_kind: DifferenceClass
    needs: str
    function: str

    def plant(self, plant: "Plant") -> "Plant":
        """The parts of the evaluator with this fault in them."""
        module, name = self.function.split(".")
        return cast("Plant", getattr(import_module(f"kgverify.faults.planted.{module}"), name)(plant))


@dataclass(frozen=True)
class Composite:
    """Several faults under one name, planted in order: a system that had them all."""

    name: str
    parts: tuple[str, ...]
    breaks: str
    seen_in: str
