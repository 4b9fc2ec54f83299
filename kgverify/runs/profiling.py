"""A profile of a GPU: the operations on it, and their time. torch is imported on demand."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kgverify.files.writing import temporary_folder


def profile_device(work: Callable[[], Any]) -> tuple[int, float]:
    """Return the number of kernels, copies and fills on a CUDA device during some work, and their seconds."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with _silent_stderr(), profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work()
        torch.cuda.synchronize()
    with temporary_folder("kgverify-") as folder:
        path = folder / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8", errors="replace"))["traceEvents"]
    return count_device_events(events)


def count_device_events(events: list[dict[str, Any]]) -> tuple[int, float]:
    """Return the number of operations on the device among the events of a trace, and their seconds."""
    on_device = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    return len(on_device), sum(float(event.get("dur", 0)) for event in on_device) * 1e-6


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """Discard what the profiler's own library writes."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
