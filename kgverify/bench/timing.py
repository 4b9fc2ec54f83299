"""Timed calls: two to warm up, then the steady state; each result is checked before its time counts."""

import gc
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from kgverify.bench.plan import LEAST_REPEATS
from kgverify.bench.result import Agreement, Measurement, State
from kgverify.engines.protocol import Progress, no_progress

Result = TypeVar("Result")

WARM_UP: int = 2
"""Calls before the steady state: the first compiles, and the second may compile again, for the state the first left."""

Check = Callable[[Any], Sequence[Agreement]]
"""Compares the result of a call with what is expected."""


@dataclass
class Stopwatch:
    """The times and facts of one measurement so far; `close` makes the measurement at any time.

    wait: waits until everything that a call started has ended
    A measurement that is not right has no times.
    """

    name: str
    num_units: int = 0
    wait: Callable[[], object] = lambda: None
    build_seconds: float | None = None
    compile_seconds: float | None = None
    warm_up: list[float] = field(default_factory=list)
    samples: list[float] = field(default_factory=list)
    cache: str = ""
    ticks: int | None = None
    launches: int | None = None
    device_seconds: float | None = None
    peak_bytes: int | None = None
    agreements: dict[str, Agreement] = field(default_factory=dict)
    unmeasured: dict[str, str] = field(default_factory=dict)

    def add_agreements(self, agreements: Sequence[Agreement]) -> bool:
        """Add the agreements of a further call on the same candidates; return whether nothing differs in them."""
        for each in agreements:
            earlier = self.agreements.get(each.against, each)
            self.agreements[each.against] = msgspec.structs.replace(
                each,
                num_near_ties=max(earlier.num_near_ties, each.num_near_ties),
                largest_gap=max(earlier.largest_gap, each.largest_gap),
            )
        return not any(each.num_differing for each in agreements)

    def close(self, state: State, reason: str = "") -> Measurement:
        """Make the measurement of everything so far."""
        found = Measurement(
            name=self.name,
            state=state,
            reason=reason,
            num_units=self.num_units,
            agreements=tuple(self.agreements.values()),
        )
        if state not in (State.TIMED, State.INTERRUPTED):
            return found
        first, second, *_ = *self.warm_up, None, None
        same = (
            "build_seconds",
            "compile_seconds",
            "cache",
            "ticks",
            "launches",
            "device_seconds",
            "peak_bytes",
            "unmeasured",
        )
        facts = {name: getattr(self, name) for name in same}
        return msgspec.structs.replace(
            found, first_seconds=first, second_seconds=second, samples=tuple(self.samples), **facts
        )

    def time_build(self, build: Callable[[], Result]) -> Result:
        """Build something, and keep its seconds."""
        built, self.build_seconds = time_call(build, self.wait)
        return built

    def time_warm_up(self, call: Callable[[], Any], check: Check, progress: Progress = no_progress) -> None:
        """Time the first two calls. WrongResult where one is not right."""
        for _ in range(WARM_UP):
            self._time_checked(self.warm_up, call, check)
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
            if number >= LEAST_REPEATS and sum(self.samples) >= seconds:
                progress(repeats - number)
                return
            self._time_checked(self.samples, call, check)
            progress(1)

    def _time_checked(self, times: list[float], call: Callable[[], Any], check: Check) -> None:
        result, took = time_call(call, self.wait)
        number = len(self.warm_up) + len(self.samples) + 1
        if not self.add_agreements(check(result)):
            raise WrongResult(f"call {number} differs")
        times.append(took)


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
