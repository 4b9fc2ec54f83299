"""A pipeline of the compiled evaluator that carries faults."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from kgverify.engines.policy import Policy
from kgverify.program.limits import Limits
from kgverify.prover.faults.catalogue import find_faults
from kgverify.prover.faults.fault import PLANTERS, Fault, Plant, identity
from kgverify.ranking.corrupt import draw_candidates
from kgverify.ranking.rank import rank_candidates
from kgverify.runs.run import Pipeline, Run, compiled_pipeline


def plant_faults(limits: Limits, policy: Policy, faults: Sequence[Fault]) -> Plant:
    """Return the compiled evaluator's parts with the faults in them, each planted on top of those before it."""
    from kgverify.prover.stages.choose import SCORES
    from kgverify.prover.stages.stage_functions import build_stages

    for name in ("step", "pool", "edge"):
        import_module(f"kgverify.prover.faults.{name}_faults")
    plant = Plant(limits, build_stages(SCORES[policy.name]), identity, draw_candidates, rank_candidates)
    for fault in faults:
        plant = PLANTERS[fault.name](plant)
    return plant


def compiled_pipeline_with_faults(
    run: Run,
    names: Sequence[str],
    *,
    mode: str = "auto",
    device: str = "auto",
    slots: int | None = None,
    **options: Any,
) -> Pipeline:
    """Return the compiled evaluator with the named faults in it; without names, the evaluator unchanged.

    Further options are those of `compiled_pipeline`. UserError for an unknown name.
    """
    faults = find_faults(names)
    if not faults:
        return compiled_pipeline(run, mode=mode, device=device, slots=slots, **options)
    plant = plant_faults(run.limits, run.policy, faults)
    sound = compiled_pipeline(
        run,
        mode=mode,
        device=device,
        slots=slots,
        stages=plant.stages,
        faults=tuple(fault.name for fault in faults),
        **options,
    )
    return Pipeline(plant.wrap_engine(sound.engine), plant.draw, plant.rank)
