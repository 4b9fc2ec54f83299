"""The device of the evaluator: its choice, free memory and processes, copies to the host, and launches of kernels."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from numpy.typing import NDArray
from torch import Tensor, distributed

from kgverify.errors import UserError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


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
    """Return a function that another thread calls first, so that it works on the current GPU of this thread."""
    return partial(torch.cuda.set_device, torch.cuda.current_device())


def free_memory(device: torch.device) -> int:
    """Return the free bytes of the device; on a CPU, this process's share of the free memory of the machine or container."""
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

    Kernels are launched on this GPU, if it is one. On a CPU, a policy without matrix products runs on one thread, since
    its loops are so short that barriers between threads cost more than they gain. The number of threads is restored
    afterwards.
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
    """Compute products of float32 in float32, without autocast, whatever other libraries in the process have set."""
    with ExitStack() as stack:
        stack.enter_context(products_set_to(HIGHEST))
        for device in _DEVICES:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


@contextmanager
def products_set_to(setting: str) -> Iterator[None]:
    """Set products of float32 to `highest`, `high` or `medium`, as `torch.set_float32_matmul_precision` defines them.

    Afterwards restore the old setting and, separately, the newer setting of each library.
    """
    libraries: tuple[Any, ...] = (torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None))
    before = [getattr(library, "fp32_precision", None) for library in libraries]
    try:
        legacy = torch.get_float32_matmul_precision()
    except RuntimeError:
        # The new settings contradict the old one, so only the new ones are restored.
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


_is_ahead: ContextVar[bool] = ContextVar("is_ahead", default=False)

MOST_THREADS: Final = 16


def launch(kernel: Any, num_programs: int, buffers: Sequence[Any], sizes: Sequence[float] = (), **options: Any) -> None:
    """Launch a kernel with its buffers and then its sizes. Pass its constants and Triton's options by name."""
    arguments = (*buffers, *sizes)
    if _is_ahead.get():
        kernel.warmup(*arguments, grid=(num_programs,), **options)
    else:
        kernel[(num_programs,)](*arguments, **options)


def count_processors(device: torch.device) -> int:
    """Return the number of multiprocessors of a GPU; one for a CPU, on which Triton's interpreter runs."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 1


def compile_ahead(work: Callable[[], None]) -> None:
    """Compile in parallel the kernels that the work launches, without launching them.

    If this Triton does not support that, kernels are compiled at their first launch. A kernel that fails to compile
    raises then, too.
    """
    try:
        from triton import AsyncCompileMode
    except ImportError:
        return
    with (
        ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1)) as threads,
        AsyncCompileMode(threads, ignore_errors=True),
    ):
        before = _is_ahead.set(True)
        try:
            work()
        finally:
            _is_ahead.reset(before)


_PATIENCE: Final = timedelta(days=7)
"""The time that a process waits for another; `torchrun` ends the others when one has ended."""


def join_team() -> "tuple[Store, int, int] | None":
    """Join the group of processes that `torchrun` started; None without `torchrun`, or for a single process.

    Returns the key-value store that connects the processes, the index of this process, and the number of processes.

    UserError if there are more processes than GPUs, or torch was built without `torch.distributed`.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return None
    if not distributed.is_available():
        raise UserError("this torch cannot run several processes", where="WORLD_SIZE", fix="run one process")
    if torch.cuda.is_available():
        _take_gpu(int(os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0"))))
    from torch.distributed.rendezvous import rendezvous

    store, index, size = next(rendezvous("env://"))
    store.set_timeout(_PATIENCE)
    return store, index, size


def _take_gpu(number: int) -> None:
    num_gpus = torch.cuda.device_count()
    if number >= num_gpus:
        raise UserError(
            f"process {number} of this host has no GPU: there are {num_gpus}",
            where="torchrun",
            fix=f"use --nproc-per-node {num_gpus}",
        )
    torch.cuda.set_device(number)


def copy_to_host(*tensors: Tensor) -> list[NDArray[Any]]:
    """Copy tensors to the host, with a single wait."""
    copies = [
        torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda) for tensor in tensors
    ]
    for copy, tensor in zip(copies, tensors, strict=True):
        copy.copy_(tensor, non_blocking=True)
    if any(tensor.is_cuda for tensor in tensors):
        torch.cuda.current_stream().synchronize()
    return [copy.numpy() for copy in copies]
