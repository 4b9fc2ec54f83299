"""The faults by name. A fault is a function from the stages of a step to stages with one of them replaced."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kgverify.errors import UserError, suggest
from kgverify.logic.stages import Stage

if TYPE_CHECKING:
    from kgverify.engines.compiled.stages import Stages


@dataclass(frozen=True)
class Fault:
    """A named defect.

    stage:   where it is
    breaks:  what goes wrong
    seen_in: where such a defect was met
    plant:   the stages with the fault in them
    """

    name: str
    stage: Stage
    breaks: str
    seen_in: str
    plant: "Callable[[Stages], Stages]"


def find_fault(name: str) -> Fault:
    """The fault of a name. UserError for an unknown one."""
    if name not in FAULTS:
        raise UserError(
            f"unknown fault {name!r}",
            where="--fault",
            fix=suggest(name, FAULTS) or f"choose one of {', '.join(FAULTS)}",
        )
    return FAULTS[name]


def _fact_cap(stages: "Stages") -> "Stages":
    from kgverify.faults.match_facts import cap_facts

    return cap_facts(stages)


FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault(
            "fact-cap",
            Stage.MATCH_FACTS,
            "only the first 50 facts of each predicate are tried; whatever needs a later one is lost without an error",
            "a batched evaluator whose MRR fell from 0.82 to 0.47",
            _fact_cap,
        ),
    )
}
