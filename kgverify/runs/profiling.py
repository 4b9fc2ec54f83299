"""A profile of torch work: launches, replays of captured graphs, copies, waits, time and memory. torch is imported on demand."""

import json
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

from kgverify.files.writing import temporary_folder

_REGION: Final = "kgverify: profiled work"
_LAUNCHES: Final = (
    "cudaLaunchKernel",
    "cuLaunchKernel",
    "cudaLaunchCooperativeKernel",
    "hipLaunchKernel",
    "hipExtLaunch",
)
_REPLAYS: Final = ("cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch")
_WAITS: Final = ("StreamSynchronize", "DeviceSynchronize", "EventSynchronize", "CtxSynchronize")
_READS: Final = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal"}
_ON_DEVICE: Final = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclass
class Profile:
    """The sums over all profiled calls; times in seconds, memory in bytes.

    num_launches:          kernels that the host launched one by one
    num_replays:           captured graphs that it launched
    num_kernels:           kernels that ran on the device, from either
    num_device_operations: kernels, copies and fills on the device
    num_reads:             operations that need values on the host
    waits:                 how often the host waited for the device, by the function it called
    copies:                on, from or to the device, by direction
    """

    num_launches: int = 0
    num_replays: int = 0
    num_kernels: int = 0
    num_device_operations: int = 0
    num_reads: int = 0
    device_seconds: float = 0.0
    wall_seconds: float = 0.0
    peak_memory: int = 0
    waits: Counter[str] = field(default_factory=Counter)
    copies: Counter[str] = field(default_factory=Counter)


def take_profile(work: Callable[[], Any], *, is_cuda: bool) -> Profile:
    """Profile some work. Launches before or after it, and the final wait for the device, do not count."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_cuda else [])]
    if is_cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    with _silent_stderr(), profile(activities=activities, profile_memory=not is_cuda) as profiler:
        began = time.perf_counter()
        with record_function(_REGION):
            work()
        if is_cuda:
            torch.cuda.synchronize()
        wall = time.perf_counter() - began
    with temporary_folder("kgverify-") as folder:
        path = folder / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8", errors="replace"))["traceEvents"]
    found = _count_events(events)
    found.wall_seconds = wall
    found.peak_memory = torch.cuda.max_memory_allocated() if is_cuda else _find_peak(events)
    return found


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


def _count_events(events: list[dict[str, Any]]) -> Profile:
    regions = (e for e in events if e.get("name") == _REGION and e.get("cat") == "user_annotation")
    region = next(regions, {"ts": 0.0, "dur": math.inf})
    first, last = float(region["ts"]), float(region["ts"]) + float(region["dur"])
    found = Profile()
    for event in events:
        name, kind = str(event.get("name", "")), event.get("cat")
        if kind in _ON_DEVICE:
            found.num_device_operations += 1
            found.device_seconds += float(event.get("dur", 0)) * 1e-6
            found.num_kernels += kind == "kernel"
            if kind == "gpu_memcpy":
                found.copies[" ".join(name.split()[:2])] += 1
        elif kind in ("cuda_runtime", "cuda_driver", "cpu_op") and first <= float(event.get("ts", 0)) <= last:
            found.num_launches += name.startswith(_LAUNCHES)
            found.num_replays += name.startswith(_REPLAYS)
            found.num_reads += name in _READS
            if name.endswith(_WAITS) and kind != "cpu_op":
                found.waits[name] += 1
    return found


def _find_peak(events: list[dict[str, Any]]) -> int:
    """Return the most memory held at one time, of what was allocated since the start."""
    in_order = sorted((e for e in events if e.get("name") == "[memory]"), key=lambda e: float(e["ts"]))
    return max(accumulate((int(e["args"].get("Bytes", 0)) for e in in_order), initial=0))
