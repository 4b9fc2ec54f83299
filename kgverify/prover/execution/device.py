"""The device that the evaluator works on: which one, its free memory, and settings pinned while it works."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from kgverify.errors import UserError

HIGHEST: Final = "highest"
_DEVICES: Final = ("cpu", "cuda")
_CGROUP: Final = Path("/sys/fs/cgroup")


def resolve_device(device: str) -> torch.device:
    """Return the device; `auto` takes CUDA if there is one. UserError for a device that does not exist here."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError("no CUDA device is available", where="device", fix="use --device cpu")
    try:
        return torch.device(device)
    except RuntimeError:
        raise UserError(f"unknown device {device!r}", where="device", fix="use auto, cpu or cuda") from None


def stay_on_this_gpu() -> Callable[[], None]:
    """Return what another thread calls first, so that it works on this thread's current GPU."""
    return partial(torch.cuda.set_device, torch.cuda.current_device())


def free_memory(device: torch.device) -> int:
    """Return the free bytes of the device; on a CPU, this process's share of the free memory of machine or container."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        most, used = ((_CGROUP / f"memory.{of}").read_text().strip() for of in ("max", "current"))
    except OSError:
        most = used = ""
    if most.isdecimal() and used.isdecimal():
        free = min(free, int(most) - int(used))
    return free // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


@contextmanager
def on_device(device: torch.device, has_products: bool) -> Iterator[None]:
    """Work on a device, with pinned arithmetic (`pinned_arithmetic`).

    On a GPU, kernels are launched on this one. On a CPU, a policy without matrix products runs on one thread: its loops are
    short, and lose more to the barriers between threads than they gain. The number of threads is restored afterwards.
    """
    if device.type == "cuda":
        with torch.cuda.device(device), pinned_arithmetic():
            yield
        return
    if has_products:
        with pinned_arithmetic():
            yield
        return
    with single_thread():
        yield


@contextmanager
def single_thread() -> Iterator[None]:
    """Let torch use one thread, and restore the number of threads afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def pinned_arithmetic() -> Iterator[None]:
    """Compute products of float32 in float32, without autocast, whatever another library in the process has set."""
    with ExitStack() as stack:
        stack.enter_context(products_set_to(HIGHEST))
        for device in _DEVICES:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


@contextmanager
def products_set_to(setting: str) -> Iterator[None]:
    """Set products of float32 to `highest`, `high` or `medium`, as `torch.set_float32_matmul_precision` defines them.

    Restores the old setting and, separately, the newer setting of each library.
    """
    libraries: tuple[Any, ...] = (torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None))
    before = [getattr(library, "fp32_precision", None) for library in libraries]
    try:
        legacy = torch.get_float32_matmul_precision()
    except RuntimeError:
        # The new settings contradict it; they alone are restored.
        legacy = None
    torch.set_float32_matmul_precision(setting)
    try:
        yield
    finally:
        if legacy is not None:
            torch.set_float32_matmul_precision(legacy)
        for library, value in zip(libraries, before, strict=True):
            if value is not None:
                library.fp32_precision = value
