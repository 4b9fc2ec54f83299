"""What is read of the machine beside the clock: memory, launches, what torch compiled, and where all of it ran."""

import gc
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from kgverify import __version__
from kgverify.bench.result import Environment

NO_LAUNCHES: Final = "there are no kernel launches on a CPU"

_STATUS: Final = Path("/proc/self/status")
_CLEAR: Final = Path("/proc/self/clear_refs")
_COMPILE_CLOCK: Final = "_compile.compile_inner"
_CACHE: Final = "fxgraph_cache_"


def wait_for(device: torch.device) -> None:
    """Until the device has done all that it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def forget(device: torch.device) -> None:
    """Let go of what was compiled, and of memory that is not in use."""
    gc.collect()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


class Compiled(NamedTuple):
    """seconds: by torch's own clock, None where it has none; cache: `miss`, `hit`, `bypass`, or several"""

    seconds: float | None
    cache: str


def read_compiled() -> Compiled:
    """What `torch.compile` has done since `forget`."""
    utils: Any = torch._dynamo.utils
    times = utils.compilation_time_metrics.get(_COMPILE_CLOCK)
    counted = utils.counters["inductor"]
    found = [kind for kind in ("miss", "hit", "bypass") if counted[_CACHE + kind]]
    return Compiled(None if times is None else float(sum(times)), " and ".join(found))


class MemoryGauge:
    """The most memory in use since it was made, less what was in use then. On a CPU: of the process, what is resident."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._reason = ""
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            self._before = int(torch.cuda.memory_allocated(device))
            return
        self._before = _read_status("VmRSS")
        self.restart()

    def restart(self) -> None:
        """On a CPU leave out what was the most so far: the compiler's own. On CUDA all counts, graphs' memory included."""
        if self._device.type == "cuda":
            return
        try:
            _CLEAR.write_text("5")
        except OSError:
            self._reason = "the kernel does not let this process restart its peak of resident memory"

    def read(self) -> tuple[int | None, str]:
        """Bytes, or None and why not."""
        if self._device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self._device)) - self._before, ""
        if self._reason or not self._before:
            return None, self._reason or "this system does not tell the resident memory of a process"
        return max(0, _read_status("VmHWM") - self._before), ""


def _read_status(key: str) -> int:
    """Bytes; 0 where the system does not tell."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(f"{key}:")), 0)


class Launches(NamedTuple):
    """Kernels and copies on the device, and the seconds that they took together."""

    num: int
    seconds: float


def count_launches(work: Callable[[], Any], device: torch.device) -> Launches:
    """Of one call, on CUDA. RuntimeError where the profiler sees nothing: it may not be permitted to."""
    from torch.profiler import ProfilerActivity, profile

    wait_for(device)
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        work()
        wait_for(device)
    on_device = torch.autograd.DeviceType.CUDA  # type: ignore[attr-defined]
    found = [
        each
        for each in profiled.key_averages()
        if each.device_type == on_device and not getattr(each, "is_user_annotation", False)
    ]
    if not found:
        raise RuntimeError("the profiler saw no kernel")
    return Launches(sum(each.count for each in found), sum(each.self_device_time_total for each in found) / 1e6)


@contextmanager
def with_caches(is_fresh: bool) -> Iterator[None]:
    """Compile with empty caches on disk, gone afterwards; or with those that are there."""
    if not is_fresh:
        yield
        return
    from torch._inductor.utils import fresh_cache

    raised: BaseException | None = None
    # Errors pass it by: torch would keep its folder and log where.
    with fresh_cache():
        try:
            yield
        except BaseException as error:
            raised = error
    if raised is not None:
        raise raised


def read_environment(device: torch.device, *, is_fresh: bool) -> Environment:
    """This machine, and the libraries."""
    is_cuda = device.type == "cuda"
    try:
        triton = metadata.version("triton")
    except metadata.PackageNotFoundError:
        triton = ""
    return Environment(
        kgverify=__version__,
        python=platform.python_version(),
        torch=str(torch.__version__),
        triton=triton,
        cuda=str(torch.version.cuda or "") if is_cuda else "",
        device=device.type,
        device_name=torch.cuda.get_device_name(device) if is_cuda else _name_processor(),
        platform=f"{platform.system()} {platform.machine()}",
        num_cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        matmul_precision=torch.get_float32_matmul_precision(),
        tf32=bool(torch.backends.cuda.matmul.allow_tf32),
        caches="fresh" if is_fresh else "as found",
    )


def _name_processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()
