"""The choice of device, mode and precision, each with its reason."""

from collections.abc import Callable
from typing import NamedTuple, TypedDict

import torch

from kgverify.engines.policy import Policy
from kgverify.errors import UserError
from kgverify.files.code_identity import find_compiler
from kgverify.program.limits import Limits
from kgverify.program.program import Program
from kgverify.prover.execution.compilation import FUSED, resolve_mode, why_not_compiled
from kgverify.prover.execution.device import resolve_device
from kgverify.prover.native.choice import why_not_native
from kgverify.prover.stages.choose import SCORES, score_two_tower
from kgverify.prover.stages.stage_functions import Stages, build_stages
from kgverify.prover.state import Layout
from kgverify.prover.tower.precision import FLOAT32, PRECISIONS


class Execution(NamedTuple):
    """The device, mode and precision chosen, and the reason for each in words."""

    device: torch.device
    mode: str
    precision: str
    reasons: tuple[str, ...]


class Wanted(TypedDict, total=False):
    """The requested way to run. What is missing is `auto`, or `float32` for the precision."""

    mode: str
    device: str
    precision: str


def choose_execution(
    limits: Limits,
    policy: Policy,
    stages: Stages,
    find_obstacle: Callable[[torch.device], str | None],
    *,
    mode: str = "auto",
    device: str = "auto",
    precision: str = FLOAT32,
) -> Execution:
    """Choose what is `auto`, and check what is given. UserError for anything not available here.

    find_obstacle: the obstacle to mode `fused` on a device
    """
    on = resolve_device(device)
    obstacle = find_obstacle(on)
    how = resolve_mode(mode, on, obstacle)
    products = resolve_precision(precision, policy, stages, on)
    reason = _mode_reason(mode, how, on, obstacle)
    if mode == "auto" and on.type == "cpu":
        # None where an engine on tensors is made directly.
        replaced = None if stages == build_stages(SCORES[policy.name]) else stages
        not_native = why_not_native("cpu", precision, limits, policy, replaced)
        if not_native is not None and not_native not in reason:
            reason = f"not native, since {not_native}; {reason}"
    reasons = (
        f"device {on.type}: {_device_reason(device, on)}",
        f"mode {how}: {reason}",
        f"precision {products}: {_precision_reason(precision, products)}",
    )
    return Execution(on, how, products, reasons)


def _device_reason(asked: str, device: torch.device) -> str:
    if asked != "auto":
        return "as requested"
    return "torch found one" if device.type == "cuda" else "torch found no CUDA device"


def _mode_reason(asked: str, mode: str, device: torch.device, obstacle: str | None) -> str:
    if asked != "auto":
        return "as requested"
    if mode == FUSED:
        return "the fused kernels support this run"
    if device.type == "cuda":
        return f"not fused, since {obstacle}; captured graphs leave no gaps between launches"
    if mode == "eager":
        return why_not_compiled() or ("eager" if find_compiler() else "no C++ compiler is on the PATH")
    return "compiled loops are faster than eager ones, and a C++ compiler was found"


def _precision_reason(asked: str, precision: str) -> str:
    if asked != precision:
        return f"not {asked}, since the policy has no products"
    return (
        "the precision in which scores are compared"
        if precision == FLOAT32
        else "as requested; close choices are made again in a higher one"
    )


def why_not_fused(
    program: Program, limits: Limits, policy: Policy, layout: Layout, stages: Stages, device: torch.device
) -> str | None:
    """Return the obstacle to ticks of fused kernels, which replace sound stages of bounded sizes; None without one."""
    if stages != build_stages(SCORES[policy.name]):
        return "there is a fault in one of the stages that it replaces"
    try:
        import triton

        from kgverify.prover.fused.resolve_kernels import MOST_ATOMS, MOST_RESOLVENTS, MOST_VARIABLES
        from kgverify.prover.tower.launch import MOST_WIDE, can_run
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


def resolve_precision(precision: str, policy: Policy, stages: Stages, device: torch.device) -> str:
    """Return the precision to use: `shortest` has no products, so its scores are exact in float32.

    UserError for a precision that is not available.
    """
    if precision not in PRECISIONS:
        raise UserError(
            f"unknown precision {precision!r}", where="precision", fix=f"choose one of {', '.join(PRECISIONS)}"
        )
    if precision == FLOAT32 or policy.name != "two_tower":
        return FLOAT32
    if device.type != "cuda":
        raise UserError(
            f"precision {precision!r} needs a CUDA device", where="precision", fix=f"use --tune precision={FLOAT32}"
        )
    if stages.score is not score_two_tower:
        raise UserError(
            f"precision {precision!r} replaces the stage `score`, in which there is a fault",
            where="precision",
            fix=f"use --tune precision={FLOAT32} with this fault",
        )
    from kgverify.prover.tower.launch import MOST_WIDE, can_run

    if not can_run(policy):
        raise UserError(
            f"precision {precision!r} supports hidden widths of at most {MOST_WIDE}",
            where="precision",
            fix=f"use --tune precision={FLOAT32} with these weights",
        )
    return precision
