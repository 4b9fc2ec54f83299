"""What the measures and the bits of a process depend on, as every report of an audit tells it."""

import os
import platform
from collections.abc import Callable
from typing import Any, Final

import torch

VARIABLES: Final = ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")
"""Of the environment: they change products without a line of code."""


def describe_environment(device: str, **more: str) -> dict[str, str]:
    """Versions, device (`cpu` or `cuda`), threads, what else a report depends on, and what products of float32 are set to."""
    described = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "device": device,
        "threads": str(torch.get_num_threads()),
        "deterministic_algorithms": str(torch.are_deterministic_algorithms_enabled()),
    }
    if device == "cuda":
        described["gpu"] = torch.cuda.get_device_name()
    return described | more | read_settings()


def read_settings() -> dict[str, str]:
    """What the process is set to, as it is reported; `mixed` where old and new settings contradict one another."""

    def read(look: Callable[[], Any]) -> str:
        try:
            return str(look())
        except (RuntimeError, AttributeError):
            return "mixed"

    mkldnn: Any = torch.backends.mkldnn
    settings = {
        "float32_matmul_precision": read(torch.get_float32_matmul_precision),
        "cuda.matmul.allow_tf32": read(lambda: torch.backends.cuda.matmul.allow_tf32),
        "cuda.matmul.fp32_precision": read(lambda: torch.backends.cuda.matmul.fp32_precision),
        "cudnn.allow_tf32": read(lambda: torch.backends.cudnn.allow_tf32),
        "mkldnn.matmul.fp32_precision": read(lambda: mkldnn.matmul.fp32_precision),
        "autocast.cpu": read(lambda: torch.is_autocast_enabled("cpu")),
        "autocast.cuda": read(lambda: torch.is_autocast_enabled("cuda")),
    }
    return settings | {name: os.environ[name] for name in VARIABLES if name in os.environ}
