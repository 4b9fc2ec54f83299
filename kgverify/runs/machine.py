"""The machine, the versions and the torch settings on which measurements and bits depend. torch is imported only on demand."""

import os
import platform
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

VARIABLES: Final = ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")
"""Environment variables that change products in float32 without a line of code."""

_PREFIXES: Final = ("TORCH", "PYTORCH", "INDUCTOR_", "AOT_", "TRITON_")
_OF_PLACE: Final = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


def describe_environment(device: str, **more: str) -> dict[str, str]:
    """Return versions, device, threads and settings as named texts, with further ones of the caller's."""
    import torch

    described = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "device": device,
        "threads": str(torch.get_num_threads()),
        "deterministic_algorithms": str(torch.are_deterministic_algorithms_enabled()),
    }
    if device == "cuda":
        described["gpu"] = torch.cuda.get_device_name()
    return described | more | read_product_settings()


def read_cpu_seconds() -> float:
    """Return the CPU time of this process and of those that it has waited for."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


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


def read_compiler_settings() -> dict[str, str]:
    """Return the environment variables, and the settings of the compiler, that differ from torch's defaults."""
    import torch._dynamo.config
    import torch._functorch.config
    import torch._inductor.config

    found = {name: value for name, value in os.environ.items() if name.startswith(_PREFIXES) and name not in _OF_PLACE}
    with warnings.catch_warnings():
        # Some settings are deprecated.
        warnings.simplefilter("ignore")
        for config in (torch._dynamo.config, torch._functorch.config, torch._inductor.config):
            known: Any = config
            for name in known.get_config_copy():
                entry, value = known._config.get(name), getattr(known, name, None)
                if not name.startswith("_") and entry is not None and entry.alias is None and value != entry.default:
                    found[f"{known.__name__}.{name}"] = str(value)
    return found


def read_processor() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()
