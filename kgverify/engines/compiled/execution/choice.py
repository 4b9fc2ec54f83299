"""Where, how and in which precision the evaluator runs: decided in one place, each choice with its reason."""

from typing import NamedTuple

import torch

from kgverify.engines.compiled.execution.compilation import (
    FUSED,
    has_cpp_compiler,
    resolve_device,
    resolve_mode,
    why_not_compiled,
)
from kgverify.engines.compiled.fused.obstacles import why_not_fused
from kgverify.engines.compiled.stages.precision import FLOAT32, resolve_precision
from kgverify.engines.compiled.stages.stage_functions import Stages
from kgverify.engines.compiled.state import Layout
from kgverify.engines.policy import Policy
from kgverify.program.limits import Limits
from kgverify.program.program import Program


class Execution(NamedTuple):
    """What was decided. reasons: of device, mode and precision, in words"""

    device: torch.device
    mode: str
    precision: str
    reasons: tuple[str, ...]


def choose_execution(
    device: str,
    mode: str,
    precision: str,
    *,
    program: Program,
    limits: Limits,
    policy: Policy,
    layout: Layout,
    stages: Stages,
) -> Execution:
    """Decide what is `auto`, and check what is given. UserError for what is not to be had here."""
    on = resolve_device(device)
    obstacle = why_not_fused(program, limits, policy, layout, stages, on)
    how = resolve_mode(mode, on, obstacle)
    products = resolve_precision(precision, policy, stages, on)
    reasons = (
        f"device {on.type}: {_device_reason(device, on)}",
        f"mode {how}: {_mode_reason(mode, how, on, obstacle)}",
        f"precision {products}: {_precision_reason(precision, products)}",
    )
    return Execution(on, how, products, reasons)


def _device_reason(asked: str, device: torch.device) -> str:
    if asked != "auto":
        return "as asked"
    return "there is one" if device.type == "cuda" else "torch finds no CUDA device"


def _mode_reason(asked: str, mode: str, device: torch.device, obstacle: str | None) -> str:
    if asked != "auto":
        return "as asked"
    if mode == FUSED:
        return "nothing stands in the way of the kernels made for it"
    if device.type == "cuda":
        return f"not fused, as {obstacle}; captured graphs leave no gaps between launches"
    if mode == "eager":
        return why_not_compiled() or ("eager" if has_cpp_compiler() else "no C++ compiler is on the PATH")
    return "compiled loops are faster than eager ones, and a C++ compiler is there"


def _precision_reason(asked: str, precision: str) -> str:
    if asked != precision:
        return f"not {asked}, as the policy has no products"
    return (
        "as scores are compared" if precision == FLOAT32 else "as asked; close choices are made again in a higher one"
    )
