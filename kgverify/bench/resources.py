"""Measurements beside the clock: memory, and the compilations of torch."""

import gc
from pathlib import Path
from typing import Any, Final

import torch

from kgverify.bench.timing import Stopwatch

_STATUS: Final = Path("/proc/self/status")
_CLEAR: Final = Path("/proc/self/clear_refs")
_COMPILE_CLOCK: Final = "_compile.compile_inner"
_CACHE: Final = "fxgraph_cache_"


def wait_for(device: torch.device) -> None:
    """Wait until the device has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def forget(device: torch.device) -> None:
    """Discard compiled code, and memory that is not in use."""
    gc.collect()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def read_compiled() -> tuple[float | None, str]:
    """Return the seconds that torch has compiled since `forget`, None without any, and `miss`, `hit`, `bypass` or several."""
    utils: Any = torch._dynamo.utils
    times = utils.compilation_time_metrics.get(_COMPILE_CLOCK)
    counted = utils.counters["inductor"]
    found = [kind for kind in ("miss", "hit", "bypass") if counted[_CACHE + kind]]
    return None if times is None else float(sum(times)), " and ".join(found)


class MemoryGauge:
    """The most memory in use since its creation, less the memory in use then; on a CPU the resident memory of the process."""

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
        """Forget the peak so far on a CPU, which is the compiler's; on CUDA all memory counts, that of graphs included."""
        if self._device.type == "cuda":
            return
        try:
            _CLEAR.write_text("5")
        except OSError:
            self._reason = "the kernel does not let this process restart its peak of resident memory"

    def read(self, watch: Stopwatch) -> None:
        """Note the bytes in a measurement, or the reason why they are unknown."""
        if self._device.type == "cuda":
            watch.peak_bytes = int(torch.cuda.max_memory_allocated(self._device)) - self._before
        elif self._reason or not self._before:
            reason = self._reason or "this system does not report the resident memory of a process"
            watch.unmeasured["memory"] = reason
        else:
            watch.peak_bytes = max(0, _read_status("VmHWM") - self._before)


def _read_status(key: str) -> int:
    """Return the bytes of an entry; 0 where the system does not report it."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(f"{key}:")), 0)
