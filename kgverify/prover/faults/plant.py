"""Faults planted in the parts of a run, and the evaluators that carry them."""

from collections.abc import Sequence
from importlib import import_module
from importlib.resources import files
from typing import Final

import msgspec

from kgverify.engines.plain.choice import PLAIN
from kgverify.engines.policy import Policy
from kgverify.errors import UserError, suggest
from kgverify.program.limits import OURS, Limits
from kgverify.prover.faults import edge_faults, plain_faults, search_faults  # noqa: F401 - they fill the registry
from kgverify.prover.faults.fault import PLANTERS, Carrier, Composite, Fault, Plant, identity
from kgverify.prover.native.choice import NATIVE
from kgverify.ranking.draw import draw_candidates
from kgverify.ranking.rank import rank_candidates
from kgverify.step import plain_step
from kgverify.step.search import ALL_SOUND

MODES_OF: Final = {
    Carrier.TENSORS: ("eager", "default", "reduce-overhead", "max-autotune"),
    Carrier.PLAIN: (PLAIN,),
}
"""The modes whose stages faults may replace, for each carrier."""


def find_carriers(fault: str) -> tuple[Carrier, ...]:
    """Return the carriers of a fault: any evaluator, or the evaluators whose stages it replaces."""
    if fault in PLANTERS[Carrier.ANY]:
        return (Carrier.ANY,)
    if FAULTS[fault].dialect.search != OURS.search:
        return (Carrier.PLAIN,)
    return (Carrier.TENSORS, Carrier.PLAIN) if fault in PLANTERS[Carrier.PLAIN] else (Carrier.TENSORS,)


def choose_carrier(faults: Sequence[Fault], mode: str, *, prefers_plain: bool) -> Carrier:
    """Return the evaluator whose stages are replaced in a mode; ANY if no stage is replaced.

    `auto` takes the plain one if it supports every fault and is preferred, or if no other supports a fault.

    UserError if it does not support a fault.
    """
    of_faults = {fault.name: find_carriers(fault.name) for fault in faults}
    in_stages = {name: carriers for name, carriers in of_faults.items() if Carrier.ANY not in carriers}
    if mode == "auto" and (Carrier.PLAIN,) in in_stages.values():
        mode = PLAIN
    wanted = Carrier.PLAIN if mode == PLAIN else Carrier.TENSORS
    for name, carriers in in_stages.items():
        if mode == NATIVE or (mode != "auto" and wanted not in carriers):
            modes = [mode for each in carriers for mode in MODES_OF[each]]
            raise UserError(
                f"mode {mode!r} does not carry the fault {name!r}",
                where="faults",
                fix=f"choose the mode {', '.join(modes[:-1])}{' or ' * (len(modes) > 1)}{modes[-1]}",
            )
    if not in_stages:
        return Carrier.ANY
    can_be_plain = all(Carrier.PLAIN in carriers for carriers in in_stages.values())
    is_plain = mode == PLAIN or (mode == "auto" and can_be_plain and prefers_plain)
    return Carrier.PLAIN if is_plain else Carrier.TENSORS


def plant_faults(limits: Limits, policy: Policy, faults: Sequence[Fault], carrier: Carrier = Carrier.TENSORS) -> Plant:
    """Return the parts of an evaluator with the faults in them, each planted on top of the previous ones.

    UserError for a fault of a search if the dialect has none.
    """
    plant = Plant(limits, plain_step.SOUND, ALL_SOUND, identity, draw_candidates, rank_candidates)
    if carrier is Carrier.TENSORS:
        from kgverify.prover.stages.choose import SCORES
        from kgverify.prover.stages.stage_functions import Stages

        for name in ("step", "pool"):
            import_module(f"kgverify.prover.faults.{name}_faults")
        plant = plant._replace(stages=Stages(SCORES[policy.name]))
    planters = PLANTERS[Carrier.ANY] | PLANTERS[carrier]
    for fault in faults:
        if fault.dialect.search != OURS.search == limits.dialect.search:
            switches = ",".join(f"{name}={value}" for name, value in msgspec.to_builtins(fault.dialect).items())
            raise UserError(
                f"{fault.name!r} is a fault of a search with several paths, and the dialect follows one",
                where="faults",
                fix=f"choose a search with which it shows: --limits '{switches}'",
            )
        plant = planters[fault.name](plant)
    return plant


class _Catalogue(msgspec.Struct, forbid_unknown_fields=True):
    faults: list[Fault]
    composites: list[Composite]


_CATALOGUE = msgspec.toml.decode(
    files("kgverify.prover.faults").joinpath("catalogue.toml").read_bytes(), type=_Catalogue
)

FAULTS: dict[str, Fault] = {fault.name: fault for fault in _CATALOGUE.faults}
COMPOSITES: dict[str, Composite] = {composite.name: composite for composite in _CATALOGUE.composites}


def find_faults(names: Sequence[str]) -> tuple[Fault, ...]:
    """Return the named faults in order, without repetitions, with composites expanded. UserError for an unknown name."""
    known = (*FAULTS, *COMPOSITES)
    for name in names:
        if name not in known:
            raise _unknown(name, known)
    parts = (part for name in names for part in (COMPOSITES[name].parts if name in COMPOSITES else (name,)))
    return tuple(FAULTS[part] for part in dict.fromkeys(parts))


def _unknown(name: str, known: Sequence[str] | dict[str, Fault]) -> UserError:
    return UserError(
        f"unknown fault {name!r}",
        where="faults",
        fix=suggest(name, known) or "choose one that `kgverify diff --fault list` shows",
    )
