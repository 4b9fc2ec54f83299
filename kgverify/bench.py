"""The speed of engines on the same candidates. Each engine is compared before it is timed.

A sample of its candidates is compared with the reference, and all candidates are compared with the first engine.
"""

import gc
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.engines.protocol import Engine
from kgverify.errors import UserError, check_known, describe_error, find_missing_dependency
from kgverify.evaluation.judge import find_smallest_gaps
from kgverify.evaluation.proving import prove_candidates
from kgverify.garbage_collection import without_garbage_collection
from kgverify.progress import Phase, silent_phase
from kgverify.ranking.draw import draw_candidates
from kgverify.runs.run import Run
from kgverify.trace.model.columns import Candidates, CandidateSet
from kgverify.trace.model.header import EngineInfo, unknown_columns
from kgverify.version import __version__

LEAST_REPEATS: Final = 3
"""The minimum number of repetitions; fewer would not show the spread."""
MOST_EXCUSED: Final = 256
"""The maximum number of differing candidates that the reference proves again, to see whether they are near-ties."""


class Size(NamedTuple):
    """The amount of work.

    queries, corruptions: the numbers of the run
    sample:  the number of candidates that the reference proves
    seconds: the time for repetitions; there are at least `LEAST_REPEATS`
    """

    queries: int
    corruptions: int
    sample: int
    seconds: float


SIZES: Final = {
    "small": Size(10, 20, 128, 2.0),
    "medium": Size(50, 50, 256, 5.0),
    "large": Size(200, 100, 512, 10.0),
    "extreme": Size(5000, 100, 1024, 30.0),
}


def find_size(name: str) -> Size:
    """Return the size with a name. UserError for an unknown name."""
    check_known(name, SIZES, "size", "size")
    return SIZES[name]


class State(StrEnum):
    """The state of a measurement: an engine that differs or fails has no speed."""

    TIMED = "timed"
    DIFFERS = "differs"
    FAILED = "failed"
    UNAVAILABLE = "unavailable"


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of an engine's candidates with another engine's, by outcome, limit and number of steps.

    num_near_ties: candidates that differ at two scores closer than the engine's error; not counted in `num_differing`
    """

    against: str
    num_compared: int
    num_differing: int
    num_near_ties: int = 0


class Measurement(msgspec.Struct, kw_only=True):
    """The measurement of one engine.

    warm_up_seconds: the time to make the engine and prove the candidates twice, including compilation
    seconds:         the time of each repetition
    peak_bytes:      the peak of the GPU memory that torch used in repetitions; None on the CPU
    """

    name: str
    state: State = State.TIMED
    reason: str = ""
    fix: str = ""
    num_candidates: int = 0
    warm_up_seconds: float | None = None
    seconds: list[float] = []
    peak_bytes: int | None = None
    agreements: list[Agreement] = []

    @property
    def quartiles(self) -> tuple[float, float, float] | None:
        """The quartiles of the seconds for each candidate, the median in the middle; None without repetitions."""
        if not self.seconds:
            return None
        low, median, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return low / self.num_candidates, median / self.num_candidates, high / self.num_candidates


class BenchResult(msgspec.Struct, frozen=True, kw_only=True, tag_field="format", tag="kgverify bench 1"):
    """The result of a benchmark: the reference on its sample first, then each engine on all candidates."""

    graph: str
    split: str
    num_queries: int
    num_corruptions: int
    num_candidates: int
    seed: int
    policy: str
    limits: dict[str, int]
    machine: dict[str, str]
    measurements: list[Measurement]

    @property
    def is_right(self) -> bool:
        """True if no engine differs or fails."""
        return not any(each.state in (State.DIFFERS, State.FAILED) for each in self.measurements)


class Contender(NamedTuple):
    """An engine to measure. is_optional: whether to report it as unavailable or failed instead of raising an error."""

    name: str
    make: Callable[[], Engine]
    is_optional: bool = False


def measure_engines(
    run: Run,
    reference: Contender,
    engines: Sequence[Contender],
    *,
    size: Size,
    phase: Phase = silent_phase,
) -> BenchResult:
    """Compare engines with a reference and with the first engine, and time the engines that agree.

    UserError if a required engine fails.
    """
    candidates = draw_candidates(run.graph, run.split, run.queries, run.num_corruptions, run.seed)
    num = len(candidates.query)
    rows = np.sort(np.random.default_rng(run.seed).permutation(num)[: size.sample])
    bench = _Bench(candidates, rows, size.seconds)
    measurements = []
    for contender in (reference, *engines):
        with phase(contender.name, 0):
            measurements.append(bench.measure(contender))
    return BenchResult(
        graph=run.graph.name,
        split=run.split,
        num_queries=len(run.queries),
        num_corruptions=run.num_corruptions,
        num_candidates=num,
        seed=run.seed,
        policy=run.policy.name,
        limits={name: int(getattr(run.limits, name)) for name in ("max_depth", "max_atoms", "max_resolvents")},
        machine=describe_machine(),
        measurements=measurements,
    )


class _Expectation(NamedTuple):
    """The candidates of an engine, for comparison with later engines. rows: their rows among all candidates."""

    against: str
    info: EngineInfo
    rows: NDArray[np.int64]
    ends: Candidates


class _Bench:
    """A benchmark in progress. Its first measured engine is the reference."""

    def __init__(self, candidates: CandidateSet, rows: NDArray[np.int64], seconds: float) -> None:
        self._candidates, self._rows, self._seconds = candidates, rows, seconds
        self._reference: Engine | None = None
        self._sample: _Expectation | None = None
        self._first: _Expectation | None = None

    def measure(self, contender: Contender) -> Measurement:
        """Measure one engine."""
        found = Measurement(name=contender.name)
        gc.collect()
        try:
            self._measure(contender, found)
        except Exception as error:
            if not contender.is_optional:
                raise
            explained = error if isinstance(error, UserError) else find_missing_dependency(error)
            if explained is None:
                found.state, found.reason = State.FAILED, describe_error(error)
            else:
                found.state, found.reason, found.fix = State.UNAVAILABLE, explained.message, explained.fix
            found.seconds.clear()
        return found

    def _measure(self, contender: Contender, found: Measurement) -> None:
        is_reference = self._reference is None
        work = self._candidates.take(self._rows) if is_reference else self._candidates
        found.num_candidates = len(work.query)
        begun = time.perf_counter()
        engine = contender.make()
        for _ in range(2):
            # The second call may compile again for the state that the first call left.
            ends = prove_candidates(engine, work)[0]
        found.warm_up_seconds = time.perf_counter() - begun
        sample = engine.prove(self._candidates.take(self._rows)).candidates
        if is_reference:
            self._reference = engine
            self._sample = _Expectation(contender.name, engine.info, self._rows, sample)
        else:
            steps = ("outcome", "is_limited", "num_steps")
            # An engine that returns only the ends counts no steps.
            for other, columns, names in ((self._sample, sample, steps), (self._first, ends, steps[:2])):
                if other is not None:
                    found.agreements.append(self._agree(other, engine.info, columns, names))
            if any(each.num_differing for each in found.agreements):
                found.state = State.DIFFERS
                return
            if self._first is None:
                self._first = _Expectation(contender.name, engine.info, np.arange(len(ends.query)), ends)
        torch = sys.modules.get("torch") if engine.info.device.startswith("cuda") else None
        if torch is not None:
            torch.cuda.reset_peak_memory_stats()
        while len(found.seconds) < LEAST_REPEATS or sum(found.seconds) < self._seconds:
            with without_garbage_collection():
                begun = time.perf_counter()
                again = prove_candidates(engine, work)[0]
                found.seconds.append(time.perf_counter() - begun)
            if not all(np.array_equal(getattr(again, name), getattr(ends, name)) for name in ends._fields):
                found.state, found.reason = State.DIFFERS, "it does not repeat its own results"
                found.seconds.clear()
                return
        if torch is not None:
            found.peak_bytes = int(torch.cuda.max_memory_allocated())

    def _agree(self, other: _Expectation, info: EngineInfo, ends: Candidates, names: Sequence[str]) -> Agreement:
        unknown = unknown_columns(info) | unknown_columns(other.info)
        known = [name for name in names if f"candidates.{name}" not in unknown]
        is_equal = np.ones(len(ends.query), np.bool_)
        for name in known:
            is_equal &= getattr(ends, name) == getattr(other.ends, name)
        differing = np.flatnonzero(~is_equal)
        error = info.score_error + other.info.score_error
        near = 0
        if (
            len(differing)
            and error
            and self._reference
            and "resolvents.score" not in unknown_columns(self._reference.info)
        ):
            # For the first differing candidates, the reference shows whether two scores are closer than the error.
            rows = other.rows[differing[:MOST_EXCUSED]]
            gaps = find_smallest_gaps(self._reference.prove(self._candidates.take(rows)))
            near = int((gaps <= 2 * error).sum())
        return Agreement(
            against=other.against,
            num_compared=len(ends.query) if known else 0,
            num_differing=len(differing) - near,
            num_near_ties=near,
        )


def describe_machine() -> dict[str, str]:
    """Return the processor and the versions, including torch and its GPU if torch is imported."""
    machine = {
        "kgverify": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "processor": read_processor(),
        "cpus": str(os.cpu_count()),
    }
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        machine |= {"torch": str(torch.__version__), "threads": str(torch.get_num_threads())}
        if torch.cuda.is_available():
            machine["gpu"] = torch.cuda.get_device_name()
    return machine


def read_processor() -> str:
    """Return the name of the processor."""
    with suppress(OSError):
        if named := re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE):
            return named[1]
    return platform.processor() or platform.machine()
