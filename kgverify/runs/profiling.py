"""What a profiler sees of some calls: launches, replays of captured graphs, copies, waits, time and memory."""

import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch.profiler import ProfilerActivity, profile, record_function

_REGION: Final = "kgverify: calls under audit"
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


@dataclass(frozen=True)
class Profile:
    """Of all calls together; times in seconds, memory in bytes.

    num_launches: of single kernels by the host; num_replays: of captured graphs
    num_kernels:  that ran on the device, from either
    waits:        of the host for the device, by what it called
    copies:       on or with the device, by direction
    num_reads:    operations that need values on the host
    """

    num_launches: int
    num_replays: int
    num_kernels: int
    device_seconds: float
    wall_seconds: float
    peak_memory: int
    num_reads: int
    waits: Counter[str] = field(default_factory=Counter)
    copies: Counter[str] = field(default_factory=Counter)


def take_profile(work: Callable[[], Any], *, is_cuda: bool) -> Profile:
    """Profile some work. What is launched before or after it, and waits for its end, does not count."""
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
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8", errors="replace"))["traceEvents"]
    peak = torch.cuda.max_memory_allocated() if is_cuda else _peak(events)
    return _read(events, wall, peak)


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """What the profiler's own library writes is no part of a result."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _read(events: list[dict[str, Any]], wall: float, peak: int) -> Profile:
    region = next(e for e in events if e.get("name") == _REGION and e.get("cat") == "user_annotation")
    first, last = float(region["ts"]), float(region["ts"]) + float(region["dur"])
    launches = replays = kernels = reads = 0
    seconds = 0.0
    waits: Counter[str] = Counter()
    copies: Counter[str] = Counter()
    for event in events:
        name, kind = str(event.get("name", "")), event.get("cat")
        if kind in ("kernel", "gpu_memcpy", "gpu_memset"):
            seconds += float(event.get("dur", 0)) * 1e-6
            kernels += kind == "kernel"
            if kind == "gpu_memcpy":
                copies[" ".join(name.split()[:2])] += 1
        elif kind in ("cuda_runtime", "cuda_driver", "cpu_op") and first <= float(event.get("ts", 0)) <= last:
            launches += name.startswith(_LAUNCHES)
            replays += name.startswith(_REPLAYS)
            reads += name in _READS
            if name.endswith(_WAITS) and kind != "cpu_op":
                waits[name] += 1
    return Profile(launches, replays, kernels, seconds, wall, peak, reads, waits, copies)


def _peak(events: list[dict[str, Any]]) -> int:
    """The most memory that was held at one time of what was taken since the start."""
    held = most = 0
    for event in sorted((e for e in events if e.get("name") == "[memory]"), key=lambda e: float(e["ts"])):
        held += int(event["args"].get("Bytes", 0))
        most = max(most, held)
    return most
