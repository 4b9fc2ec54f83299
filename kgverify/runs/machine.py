"""The machine, the versions and the torch settings on which measurements and bits depend. torch is imported only on demand."""

import os
import platform
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NamedTuple

from kgverify.version import __version__

VARIABLES: Final = ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")
"""Environment variables that change products in float32 without a line of code."""


class Machine(NamedTuple):
    """The computer and the versions of kgverify and Python.

    platform: the operating system with its version; system: its name and architecture, which an update leaves alone
    num_cpus: those of the machine; num_usable_cpus: those on which this process may run
    """

    kgverify: str
    python: str
    platform: str
    system: str
    processor: str
    num_cpus: int
    num_usable_cpus: int


class TorchSetup(NamedTuple):
    """The installed torch, the device in use and the settings of float32 products.

    cuda, triton: versions; empty without a CUDA device, or without the package
    """

    torch: str
    triton: str
    cuda: str
    device: str
    device_name: str
    threads: int
    is_deterministic: bool
    matmul_precision: str
    is_tf32_allowed: bool


def read_machine() -> Machine:
    """Describe this machine, without torch."""
    num_cpus = os.cpu_count() or 1
    return Machine(
        kgverify=__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        system=f"{platform.system()} {platform.machine()}",
        processor=_read_processor(),
        num_cpus=num_cpus,
        num_usable_cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else num_cpus,
    )


def read_torch(device: str) -> TorchSetup:
    """Describe the installed torch and its settings on a device, `cpu` or `cuda`."""
    import torch

    is_cuda = device == "cuda"
    try:
        triton = metadata.version("triton")
    except metadata.PackageNotFoundError:
        triton = ""
    return TorchSetup(
        torch=str(torch.__version__),
        triton=triton,
        cuda=str(torch.version.cuda or "") if is_cuda else "",
        device=device,
        device_name=torch.cuda.get_device_name() if is_cuda else _read_processor(),
        threads=torch.get_num_threads(),
        is_deterministic=torch.are_deterministic_algorithms_enabled(),
        matmul_precision=torch.get_float32_matmul_precision(),
        is_tf32_allowed=bool(torch.backends.cuda.matmul.allow_tf32),
    )


def describe_environment(device: str, **more: str) -> dict[str, str]:
    """Return versions, device, threads and settings as named texts, with further ones of the caller's."""
    machine, setup = read_machine(), read_torch(device)
    described = {
        "python": machine.python,
        "torch": setup.torch,
        "device": device,
        "threads": str(setup.threads),
        "deterministic_algorithms": str(setup.is_deterministic),
    }
    if device == "cuda":
        described["gpu"] = setup.device_name
    return described | more | read_product_settings()


def read_product_settings() -> dict[str, str]:
    """Return torch's settings of float32 products; `mixed` where an old and a new setting contradict each other."""
    import torch

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


def _read_processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()
