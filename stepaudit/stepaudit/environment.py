"""The versions and settings that compiled code depends on, and the CPU time used."""

import os
import platform
import warnings
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final

import torch
import torch._dynamo.config
import torch._functorch.config
import torch._inductor.config

_PREFIXES: Final = ("TORCH", "PYTORCH", "INDUCTOR_", "AOT_", "TRITON_", "NVIDIA_TF32_OVERRIDE")
_UNLISTED: Final = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "PYTORCH_NVML_BASED_CUDA_CHECK")


def read_cpu_seconds() -> float:
    """Return the CPU time of this process and of the child processes that it has waited for."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def describe_environment(**more: str) -> dict[str, str]:
    """Return versions, device, threads, and the settings and variables that differ from torch's defaults."""
    is_cuda = torch.cuda.is_available()
    described = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "device": "cuda" if is_cuda else "cpu",
        "threads": str(torch.get_num_threads()),
        "deterministic_algorithms": str(torch.are_deterministic_algorithms_enabled()),
    }
    if is_cuda:
        described["gpu"] = torch.cuda.get_device_name()
    names = (name for name in os.environ if name.startswith(_PREFIXES) and name not in _UNLISTED)
    described |= {name: os.environ[name] for name in names}
    with warnings.catch_warnings():
        # Some settings are deprecated.
        warnings.simplefilter("ignore")
        for config in (torch._dynamo.config, torch._functorch.config, torch._inductor.config):
            known: Any = config
            for name in known.get_config_copy():
                entry, value = known._config.get(name), getattr(known, name, None)
                if not name.startswith("_") and entry is not None and entry.alias is None and value != entry.default:
                    described[f"{known.__name__}.{name}"] = str(value)
    return described | more | read_product_settings()


def read_product_settings() -> dict[str, str]:
    """Return torch's settings of float32 products; `mixed` if an old and a new setting contradict each other."""

    def read(look: Callable[[Any], Any]) -> str:
        try:
            return str(look(torch.backends))
        except (RuntimeError, AttributeError):
            return "mixed"

    matmul = "cuda.matmul.allow_tf32", "cuda.matmul.fp32_precision", "cudnn.allow_tf32", "mkldnn.matmul.fp32_precision"
    return {
        "float32_matmul_precision": read(lambda _: torch.get_float32_matmul_precision()),
        **{name: read(attrgetter(name)) for name in matmul},
        **{f"autocast.{device}": str(torch.is_autocast_enabled(device)) for device in ("cpu", "cuda")},
    }
