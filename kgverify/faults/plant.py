"""Planting faults: a compiled pipeline whose stages carry them."""

from collections.abc import Sequence

from kgverify.faults.catalogue import find_fault
from kgverify.harness.run import Pipeline, Run, compiled_pipeline


def compiled_pipeline_with_faults(
    run: Run, names: Sequence[str], *, mode: str = "auto", device: str = "auto", slots: int | None = None
) -> Pipeline:
    """The compiled evaluator with the named faults in it; none gives it as it is. UserError for an unknown name."""
    faults = [find_fault(name) for name in names]
    if not faults:
        return compiled_pipeline(run, mode=mode, device=device, slots=slots)
    from kgverify.engines.compiled.choose import SCORES
    from kgverify.engines.compiled.stages import build_stages

    stages = build_stages(SCORES[run.policy.name])
    for fault in faults:
        stages = fault.plant(stages)
    return compiled_pipeline(
        run, mode=mode, device=device, slots=slots, stages=stages, faults=tuple(fault.name for fault in faults)
    )
