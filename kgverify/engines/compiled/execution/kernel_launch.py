"""Triton kernels are launched here, or compiled ahead, all that a piece of work launches at once."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, Final

import torch

_is_ahead: ContextVar[bool] = ContextVar("is_ahead", default=False)

MOST_THREADS: Final = 16


def launch(kernel: Any, num_programs: int, *arguments: Any, **options: Any) -> None:
    """Launch a kernel; its constants and Triton's options are given by name."""
    if _is_ahead.get():
        kernel.warmup(*arguments, grid=(num_programs,), **options)
    else:
        kernel[(num_programs,)](*arguments, **options)


def count_processors(device: torch.device) -> int:
    """Multiprocessors of a GPU; of a CPU, in Triton's interpreter, one."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 1


def compile_ahead(work: Callable[[], None]) -> None:
    """Compile what the work launches, without launching it, side by side; where Triton cannot do so, at its first launch.

    What cannot be compiled is told at its first launch, too.
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
