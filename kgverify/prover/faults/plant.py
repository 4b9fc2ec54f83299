"""Faults planted in the parts of a run."""

from collections.abc import Sequence
from importlib import import_module

from kgverify.engines.policy import Policy
from kgverify.program.limits import Limits
from kgverify.prover.faults.fault import PLANTERS, Fault, Plant, identity
from kgverify.ranking.corrupt import draw_candidates
from kgverify.ranking.rank import rank_candidates


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
