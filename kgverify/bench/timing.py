"""Timed calls, each checked before its time counts: two to warm up, then the steady state; memory and compilations."""

import gc
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import torch

from kgverify.bench.plan import LEAST_REPEATS
from kgverify.bench.result import Agreement, Measurement, State
from kgverify.progress import Progress, no_progress

Result = TypeVar("Result")

WARM_UP: int = 2
"""Calls before the steady state: the first compiles, and the second may compile again, for the state the first left."""

Check = Callable[[Any], Sequence[Agreement]]
"""Compares the result of a call with what is expected."""


_STATUS: Final = Path("/proc/self/status")
_CLEAR: Final = Path("/proc/self/clear_refs")
_COMPILE_CLOCK: Final = "_compile.compile_inner"
_CACHE: Final = "fxgraph_cache_"


class Stopwatch:
    """The clock of one measurement; `close` ends the measurement at any time.

    found: the times and facts so far
    wait:  waits until everything that a call started has ended
    """

    def __init__(self, name: str, num_units: int = 0) -> None:
        self.found = Measurement(name=name, state=State.INTERRUPTED, num_units=num_units)
        self.wait: Callable[[], object] = lambda: None
        self._num_calls = 0

    def add_agreements(self, agreements: Sequence[Agreement]) -> bool:
        """Add the agreements of a further call on the same candidates; return whether nothing differs in them."""
        known = {each.against: each for each in self.found.agreements}
        for each in agreements:
            earlier = known.get(each.against, each)
            known[each.against] = msgspec.structs.replace(
                each,
                num_near_ties=max(earlier.num_near_ties, each.num_near_ties),
                largest_gap=max(earlier.largest_gap, each.largest_gap),
            )
        self.found.agreements = tuple(known.values())
        return not any(each.num_differing for each in agreements)

    def close(self, state: State, reason: str = "") -> Measurement:
        """Return the measurement of everything so far; one that is not right has no times."""
        found = self.found
        if state not in (State.TIMED, State.INTERRUPTED):
            return Measurement(
                name=found.name, state=state, reason=reason, num_units=found.num_units, agreements=found.agreements
            )
        found.state, found.reason = state, reason
        return found

    def time_build(self, build: Callable[[], Result]) -> Result:
        """Build something, and keep its seconds."""
        built, self.found.build_seconds = time_call(build, self.wait)
        return built

    def time_warm_up(self, call: Callable[[], Any], check: Check, progress: Progress = no_progress) -> None:
        """Time the first two calls. WrongResult where one is not right."""
        self.found.first_seconds = self._time_checked(call, check)
        progress(1)
        self.found.second_seconds = self._time_checked(call, check)
        progress(1)

    def time_steady(
        self,
        call: Callable[[], Any],
        check: Check,
        *,
        repeats: int,
        seconds: float,
        progress: Progress = no_progress,
    ) -> None:
        """Time repeated calls, with a time limit that applies after `LEAST_REPEATS`. WrongResult where one is not right."""
        gc.collect()
        for number in range(repeats):
            if number >= LEAST_REPEATS and sum(self.found.samples) >= seconds:
                progress(repeats - number)
                return
            self.found.samples += (self._time_checked(call, check),)
            progress(1)

    def _time_checked(self, call: Callable[[], Any], check: Check) -> float:
        result, took = time_call(call, self.wait)
        self._num_calls += 1
        if not self.add_agreements(check(result)):
            raise WrongResult(f"call {self._num_calls} differs")
        return took


class WrongResult(Exception):
    """The result of a call differs from the expected one. The message names the call."""


def time_call(call: Callable[[], Result], wait: Callable[[], object]) -> tuple[Result, float]:
    """Return the result of a call and its seconds, during which no garbage is collected."""
    wait()
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        began = time.perf_counter()
        result = call()
        wait()
        return result, time.perf_counter() - began
    finally:
        if is_enabled:
            gc.enable()


def describe_failure(error: BaseException) -> str:
    """Return the type of an error and its message on one line, shortened where it is long."""
    message = textwrap.shorten(str(error), 300, placeholder=" …")
    return f"{type(error).__name__}: {message}".removesuffix(": ")


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
            watch.found.peak_bytes = int(torch.cuda.max_memory_allocated(self._device)) - self._before
        elif self._reason or not self._before:
            reason = self._reason or "this system does not report the resident memory of a process"
            watch.found.unmeasured["memory"] = reason
        else:
            watch.found.peak_bytes = max(0, _read_status("VmHWM") - self._before)


def _read_status(key: str) -> int:
    """Return the bytes of an entry; 0 where the system does not report it."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(f"{key}:")), 0)
