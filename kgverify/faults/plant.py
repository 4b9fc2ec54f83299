"""A pipeline of kgverify's own evaluator that carries faults."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from kgverify.engines.native.choice import NATIVE
from kgverify.engines.plain.choice import PLAIN, has_torch
from kgverify.errors import UserError
from kgverify.faults import edge_faults, plain_faults  # noqa: F401 - they fill the registry
from kgverify.faults.catalogue import find_faults
from kgverify.faults.fault import PLANTERS, Carrier, Fault, Plant, identity
from kgverify.ranking.corrupt import draw_candidates
from kgverify.ranking.rank import rank_candidates
from kgverify.runs.run import Pipeline, Run, compiled_pipeline
from kgverify.step import plain_step


def find_carriers(fault: str) -> tuple[str, ...]:
    """Return the modes that carry a fault, in words: by what it changes, an evaluator's stages or what surrounds them."""
    if fault in PLANTERS[Carrier.ANY]:
        return ("any",)
    return ("those of torch", *([PLAIN] if fault in PLANTERS[Carrier.PLAIN] else []))


def choose_carrier(faults: Sequence[Fault], mode: str) -> Carrier:
    """Return the evaluator whose stages are to be replaced in a mode. UserError if the mode does not carry a fault."""
    is_plain = mode == PLAIN or (mode == "auto" and not has_torch())
    carrier = Carrier.PLAIN if is_plain else Carrier.TENSORS
    for fault in faults:
        carriers = find_carriers(fault.name)
        if not {"any", mode if mode in (NATIVE, PLAIN) else "those of torch"} & {*carriers}:
            raise UserError(
                f"mode {mode!r} does not carry the fault {fault.name!r}",
                where="--fault",
                fix=f"use a mode that carries it: {' or '.join(carriers)}",
            )
        if mode == "auto" and not {"any", PLAIN} & {*carriers}:
            carrier = Carrier.TENSORS
    return carrier


def plant_faults(run: Run, faults: Sequence[Fault], carrier: Carrier = Carrier.TENSORS) -> Plant:
    """Return the parts of an evaluator with the faults in them, each planted on top of those before it."""
    plant = Plant(run, plain_step.SOUND, identity, draw_candidates, rank_candidates)
    if carrier is Carrier.TENSORS:
        from kgverify.engines.compiled.stages.choose import SCORES
        from kgverify.engines.compiled.stages.stage_functions import build_stages

        for name in ("step", "pool"):
            import_module(f"kgverify.faults.{name}_faults")
        plant = plant._replace(stages=build_stages(SCORES[run.policy.name]))
    planters = PLANTERS[Carrier.ANY] | PLANTERS[carrier]
    for fault in faults:
        plant = planters[fault.name](plant)
    return plant


def pipeline_with_faults(run: Run, faults: Sequence[Fault], *, mode: str = "auto", **options: Any) -> Pipeline:
    """Return the evaluator of a mode with the faults in it; without faults, the evaluator unchanged.

    Further options are those of `compiled_pipeline`. UserError if the mode does not carry a fault.
    """
    if not faults:
        return compiled_pipeline(run, mode=mode, **options)
    in_stages = [fault for fault in faults if fault.name not in PLANTERS[Carrier.ANY]]
    # Without a fault in a stage, any evaluator fits.
    carrier = choose_carrier(faults, mode) if in_stages else Carrier.ANY
    plant = plant_faults(run, faults, carrier)
    names = tuple(fault.name for fault in faults)
    stages = plant.stages if in_stages else None
    sound = compiled_pipeline(run, mode=mode, stages=stages, faults=names, **options)
    return Pipeline(plant.wrap_engine(sound.engine), plant.draw, plant.rank)


def compiled_pipeline_with_faults(run: Run, names: Sequence[str], **options: Any) -> Pipeline:
    """Return the evaluator with the named faults in it, as `pipeline_with_faults`. UserError for an unknown name."""
    return pipeline_with_faults(run, find_faults(names), **options)
