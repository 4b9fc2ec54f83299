"""Whether ticks can be made of the fused kernels: they stand in for stages as they are, and for sizes that they hold."""

import torch

from kgverify.engines.compiled.stages.choose import SCORES
from kgverify.engines.compiled.stages.stage_functions import Stages, build_stages
from kgverify.engines.compiled.state import Layout
from kgverify.engines.policy import Policy
from kgverify.program.limits import Limits
from kgverify.program.program import Program


def why_not_fused(
    program: Program, limits: Limits, policy: Policy, layout: Layout, stages: Stages, device: torch.device
) -> str | None:
    """What stands in the way; None where nothing does."""
    if stages != build_stages(SCORES[policy.name]):
        return "there is a fault in one of the stages that it replaces"
    try:
        import triton

        from kgverify.engines.compiled.fused.resolve_kernels import MOST_ATOMS, MOST_RESOLVENTS, MOST_VARIABLES
        from kgverify.engines.compiled.tower.launch import MOST_WIDE, can_run
    except ImportError:
        return "Triton is not installed"
    if device.type != "cuda" and not triton.knobs.runtime.interpret:
        return "it needs a CUDA device"
    if layout.atoms > MOST_ATOMS:
        return f"it takes goals of at most {MOST_ATOMS} atoms"
    arguments = (term for rule in program.rules for atom in (rule.clause_head, *rule.body) for term in atom[1:])
    if 2 * layout.atoms - min((term for term in arguments if term < 0), default=0) > MOST_VARIABLES:
        return f"it takes at most {MOST_VARIABLES} variables of a goal and a rule together"
    if limits.max_resolvents > MOST_RESOLVENTS:
        return f"it takes at most {MOST_RESOLVENTS} resolvents of a step"
    if policy.name == "two_tower" and not can_run(policy):
        return f"it takes hidden widths of at most {MOST_WIDE}"
    return None
