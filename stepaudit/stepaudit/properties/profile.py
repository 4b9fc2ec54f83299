"""A profile of calls: launches, replays of captured graphs, copies, time and memory."""

import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import torch
from torch.profiler import ProfilerActivity, profile, record_function

_REGION: Final = "stepaudit: profiled work"
_LAUNCHES: Final = (
    *("cudaLaunchKernel", "cuLaunchKernel", "cudaLaunchCooperativeKernel"),
    *("hipLaunchKernel", "hipExtLaunch"),
)
_REPLAYS: Final = ("cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch")


@dataclass
class Profile:
    """The sums over all profiled calls; times in seconds, memory in bytes.

    launches: kernels that the host launched one by one; replays: captured graphs that it launched
    kernels:  those that ran on the device, from either
    copies:   on, from or to the device
    """

    launches: int = 0
    replays: int = 0
    kernels: int = 0
    copies: int = 0
    device_seconds: float = 0.0
    wall_seconds: float = 0.0
    peak_memory: int = 0


def take_profile(work: Callable[[], object], *, is_cuda: bool) -> Profile:
    """Profile some work. Launches before or after it, and the final wait for the device, do not count."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_cuda else [])]
    if is_cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    with _silencing_stderr(), profile(activities=activities, profile_memory=not is_cuda) as profiler:
        began = time.perf_counter()
        with record_function(_REGION):
            work()
        if is_cuda:
            torch.cuda.synchronize()
        wall_seconds = time.perf_counter() - began
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text("utf-8", "replace"))["traceEvents"]
    found = _count_events(events)
    found.wall_seconds = wall_seconds
    found.peak_memory = torch.cuda.max_memory_allocated() if is_cuda else _find_peak(events)
    return found


@contextmanager
def _silencing_stderr() -> Iterator[None]:
    """Discard what the profiler's own library writes."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _count_events(events: list[dict[str, Any]]) -> Profile:
    regions = (each for each in events if each.get("name") == _REGION and each.get("cat") == "user_annotation")
    region = next(regions, {"ts": 0.0, "dur": math.inf})
    first, last = float(region["ts"]), float(region["ts"]) + float(region["dur"])
    found = Profile()
    for event in events:
        name, kind = str(event.get("name", "")), event.get("cat")
        if kind in ("kernel", "gpu_memcpy", "gpu_memset"):
            found.device_seconds += float(event.get("dur", 0)) * 1e-6
            found.kernels += kind == "kernel"
            found.copies += kind == "gpu_memcpy"
        elif kind in ("cuda_runtime", "cuda_driver") and first <= float(event.get("ts", 0)) <= last:
            found.launches += name.startswith(_LAUNCHES)
            found.replays += name.startswith(_REPLAYS)
    return found


def _find_peak(events: list[dict[str, Any]]) -> int:
    """Return the most memory held at one time, of what was allocated since the start."""
    in_order = sorted((each for each in events if each.get("name") == "[memory]"), key=lambda each: float(each["ts"]))
    return max(accumulate((int(each["args"].get("Bytes", 0)) for each in in_order), initial=0))
