"""Launches of Triton kernels, and their compilation ahead of the first launch."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, Final

import torch

_is_ahead: ContextVar[bool] = ContextVar("is_ahead", default=False)

MOST_THREADS: Final = 16


def launch(kernel: Any, num_programs: int, buffers: Sequence[Any], sizes: Sequence[float] = (), **options: Any) -> None:
    """Launch a kernel with its buffers, then its sizes; pass its constants and Triton's options by name."""
    arguments = (*buffers, *sizes)
    if _is_ahead.get():
        kernel.warmup(*arguments, grid=(num_programs,), **options)
    else:
        kernel[(num_programs,)](*arguments, **options)


def count_processors(device: torch.device) -> int:
    """Return the number of multiprocessors of a GPU; one for a CPU, where Triton's interpreter runs."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 1


def compile_ahead(work: Callable[[], None]) -> None:
    """Compile the kernels that the work launches in parallel, without launching them.

    Where this Triton cannot, kernels are compiled at their first launch. A kernel that fails to compile raises there, too.
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
