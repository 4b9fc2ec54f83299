"""Calls that are timed: two to warm up, then the steady state; every one is checked before its time counts."""

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from kgverify.bench.agreement import join_agreements
from kgverify.bench.result import Agreement, Measurement, State
from kgverify.bench.plan import LEAST_REPEATS
from kgverify.engines.protocol import Progress, no_progress

Given = TypeVar("Given")

WARM_UP: int = 2
"""Calls before the steady state: the first compiles, and the second may once more, for what the first left behind."""

Check = Callable[[Any], Sequence[Agreement]]
"""What a call gave, beside what was expected."""


@dataclass
class Sheet:
    """What has been noted of one that is being measured; `close` makes a measurement of it at any time.

    Of one that is not right all that tells its speed is left out.
    """

    name: str
    num_units: int = 0
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

    def note_agreements(self, agreements: Sequence[Agreement]) -> bool:
        """Whether nothing differs in them."""
        for each in agreements:
            self.agreements[each.against] = join_agreements(self.agreements.get(each.against), each)
        return not any(each.num_differing for each in agreements)

    def close(self, state: State, reason: str = "") -> Measurement:
        """What there is of it."""
        agreements = tuple(self.agreements.values())
        if state not in (State.TIMED, State.INTERRUPTED):
            return Measurement(
                name=self.name, state=state, reason=reason, num_units=self.num_units, agreements=agreements
            )
        warm_up = [*self.warm_up, None, None]
        return Measurement(
            name=self.name,
            state=state,
            reason=reason,
            num_units=self.num_units,
            build_seconds=self.build_seconds,
            first_seconds=warm_up[0],
            second_seconds=warm_up[1],
            compile_seconds=self.compile_seconds,
            samples=tuple(self.samples),
            cache=self.cache,
            ticks=self.ticks,
            launches=self.launches,
            device_seconds=self.device_seconds,
            peak_bytes=self.peak_bytes,
            agreements=agreements,
            unmeasured=self.unmeasured,
        )


class Differs(Exception):
    """A call gave something else than was expected; what, and which call."""


def time_build(sheet: Sheet, build: Callable[[], Given], wait: Callable[[], None]) -> Given:
    """What is built; its seconds are noted."""
    built, sheet.build_seconds = time_call(build, wait)
    return built


def time_warm_up(
    sheet: Sheet, call: Callable[[], Any], check: Check, wait: Callable[[], None], progress: Progress = no_progress
) -> None:
    """The first two calls. Differs where one is not right."""
    for _ in range(WARM_UP):
        _take(sheet, sheet.warm_up, call, check, wait)
        progress(1)


def time_steady(
    sheet: Sheet,
    call: Callable[[], Any],
    check: Check,
    wait: Callable[[], None],
    *,
    repeats: int,
    seconds: float,
    progress: Progress = no_progress,
) -> None:
    """So many calls; past so many seconds of them no further one is begun, if there are `LEAST_REPEATS`. Differs as above."""
    gc.collect()
    for number in range(repeats):
        if number >= LEAST_REPEATS and sum(sheet.samples) >= seconds:
            progress(repeats - number)
            return
        _take(sheet, sheet.samples, call, check, wait)
        progress(1)


def time_call(call: Callable[[], Given], wait: Callable[[], None]) -> tuple[Given, float]:
    """What it gives, and its seconds, in which no garbage is looked for."""
    wait()
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        began = time.perf_counter()
        given = call()
        wait()
        return given, time.perf_counter() - began
    finally:
        if is_enabled:
            gc.enable()


def _take(sheet: Sheet, times: list[float], call: Callable[[], Any], check: Check, wait: Callable[[], None]) -> None:
    given, took = time_call(call, wait)
    number = len(sheet.warm_up) + len(sheet.samples) + 1
    if not sheet.note_agreements(check(given)):
        raise Differs(f"call {number} differs")
    times.append(took)
