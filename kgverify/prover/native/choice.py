"""The choice between the native evaluator and the evaluator on tensors, without importing torch if possible."""

import os
from pathlib import Path
from typing import Final

from kgverify.engines.plain.choice import has_torch
from kgverify.engines.policy import Policy
from kgverify.errors import UserError
from kgverify.program.limits import OURS, Limits
from kgverify.prover.native.library import UNAVAILABLE, load_library, refuse_native, why_not_available

NATIVE: Final = "native"
"""The mode of the native evaluator."""

_PRECISION: Final = {"shortest": "its scores are exact", "two_tower": "close choices are made again in float64"}
_DRIVERS: Final = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Files of the drivers that torch needs to find a CUDA device on Linux: NVIDIA's, AMD's and WSL's."""


def choose_native(
    mode: str, device: str, precision: str, limits: Limits, policy: Policy, stages: object = None
) -> tuple[str, ...] | None:
    """Return the reasons for choosing the native evaluator, in words; None if another evaluator is chosen.

    `auto` takes it for every run on a CPU that it supports. UserError if its mode is requested but not available.
    """
    if mode not in ("auto", NATIVE) or (mode == "auto" and not is_on_cpu(device)):
        return None
    obstacle = why_not_native(device, precision, limits, policy, stages)
    if obstacle is not None:
        if mode == "auto":
            return None
        raise refuse_native(obstacle)
    found = "no CUDA device was found" if mode == "auto" else f"mode {NATIVE} runs on it"
    return (
        f"device cpu: {'as requested' if device == 'cpu' else found}",
        f"mode {NATIVE}: {'as requested' if mode == NATIVE else 'the fastest on a CPU, and a C++ compiler was found'}",
        f"precision float32: {_PRECISION[policy.name]}",
    )


def why_not_native(device: str, precision: str, limits: Limits, policy: Policy, stages: object) -> str | None:
    """Return the obstacle to the native evaluator for a run on the CPU; None without one."""
    if device not in ("auto", "cpu"):
        return "it runs on the CPU"
    if limits.dialect != OURS:
        return "it supports the default dialect alone"
    if precision != "float32":
        return f"it has no precision {precision}"
    if stages is not None:
        return "there is a fault in one of its stages"
    if (obstacle := why_not_available()) is not None:
        return obstacle
    try:
        load_library()
    except UserError as error:
        return error.message.removeprefix(UNAVAILABLE)
    return None


def why_not_compiled() -> str | None:
    """Return the setting that silently turns `torch.compile` off; None if there is no such setting."""
    for name in ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE"):
        if os.environ.get(name) == "1":
            return f"{name}=1 turns torch.compile off"
    return None


def has_driver() -> bool:
    """Return whether there is the driver of a GPU."""
    return any(Path(name).exists() for name in _DRIVERS)


def is_on_cpu(device: str) -> bool:
    """Return whether a device means the CPU here. Without the driver of a GPU, torch need not be asked."""
    if device != "auto" or not has_driver() or not has_torch():
        return device in ("auto", "cpu")
    from kgverify.prover.execution.device import resolve_device

    return resolve_device(device).type == "cpu"
