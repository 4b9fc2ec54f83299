"""The comparison of a benchmark with a saved one: ratios, with the band of noise; or the reasons against a comparison."""

from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.bench.plan import LEAST_REPEATS
from kgverify.bench.result import BenchResult, State, summarize
from kgverify.errors import UserError, suggest

ASPECTS: Final = {
    "graph": ("work.graph_sha256", "work.split", "work.seed"),
    "size": ("work.num_candidates", "work.num_corruptions", "work.slots", "work.steps"),
    "policy": ("work.policy", "work.policy_sha256"),
    "limits": ("work.limits",),
    "precision": ("work.precision", "environment.matmul_precision", "environment.tf32"),
    "faults": ("work.faults",),
    "engines": ("work.reference", "work.engine"),
    "machine": (
        "environment.device",
        "environment.device_name",
        "environment.platform",
        "environment.num_cpus",
        "environment.threads",
    ),
    "torch": ("environment.torch", "environment.triton", "environment.cuda", "environment.python"),
}
"""The aspects that must be equal, with their fields; those named in `across` may differ."""

LEAST_BAND: Final = 0.05
"""Two processes differ by about this much, more than calls of one process: another layout of memory, another clock."""

_NUM_RESAMPLES: Final = 4000
_SEED: Final = 0
_COVERED: Final = 0.95


class Change(StrEnum):
    """The change of a speed.

    same: the ratio lies inside the noise band, or the fastest calls do not confirm it; unknown: one side has no speed, or too
    few repeats
    """

    SAME = "same"
    FASTER = "faster"
    SLOWER = "slower"
    UNKNOWN = "unknown"


class Obstacle(msgspec.Struct, frozen=True, kw_only=True):
    """A difference of the work or the machine that forbids a comparison."""

    aspect: str
    field: str
    before: str
    after: str


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement compared with that of its name. ratio: of medians for each unit, after to before; low, high: the band."""

    name: str
    change: Change
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str = ""


class RunComparison(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of two benchmarks. rows: empty where there are obstacles; crossed: differences that were allowed."""

    obstacles: tuple[Obstacle, ...] = ()
    crossed: tuple[Obstacle, ...] = ()
    rows: tuple[Comparison, ...] = ()
    versions: tuple[str, str] = ("", "")

    @property
    def is_compared(self) -> bool:
        """True if there is at least one ratio."""
        return any(row.change is not Change.UNKNOWN for row in self.rows)

    @property
    def is_slower(self) -> bool:
        """True if a mode is slower, beyond its band."""
        return any(row.change is Change.SLOWER for row in self.rows)


def compare_runs(
    before: BenchResult, after: BenchResult, *, across: Collection[str] = (), least_band: float = LEAST_BAND
) -> RunComparison:
    """Compare two benchmarks of the same work on the same machine.

    across:     aspects that may differ, from `ASPECTS`
    least_band: smallest band of equal ratios, to both sides of 1
    UserError for an unknown aspect, and benchmarks of different kinds.
    """
    for aspect in across:
        if aspect not in ASPECTS:
            raise UserError(
                f"unknown aspect {aspect!r}",
                where="--across",
                fix=suggest(aspect, ASPECTS) or f"choose from {', '.join(ASPECTS)}",
            )
    if before.work.kind != after.work.kind:
        raise UserError(
            f"is a benchmark of {before.work.kind}, and this is one of {after.work.kind}",
            where="--compare",
            fix="give a file of the same kind",
        )
    differences = _find_differences(before, after)
    obstacles = tuple(each for each in differences if each.aspect not in across)
    names = list(dict.fromkeys(each.name for result in (after, before) for each in result.measurements))
    rows = () if obstacles else tuple(_compare(name, before, after, least_band) for name in names)
    return RunComparison(
        obstacles=obstacles,
        crossed=tuple(each for each in differences if each.aspect in across),
        rows=rows,
        versions=(before.environment.kgverify, after.environment.kgverify),
    )


def _find_differences(before: BenchResult, after: BenchResult) -> list[Obstacle]:
    found = []
    for aspect, paths in ASPECTS.items():
        for path in paths:
            part, name = path.split(".")
            values = [getattr(getattr(result, part), name) for result in (before, after)]
            if values[0] != values[1]:
                found.append(Obstacle(aspect=aspect, field=name, before=_show(values[0]), after=_show(values[1])))
    return found


def _show(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {each}" for key, each in value.items())
    return ", ".join(value) or "none" if isinstance(value, tuple) else str(value)


def _compare(name: str, before: BenchResult, after: BenchResult, least_band: float) -> Comparison:
    earlier, later = before.find(name), after.find(name)
    for side, which in ((earlier, "the saved run"), (later, "this run")):
        if side is None or not side.samples or side.state not in (State.TIMED, State.INTERRUPTED):
            why = "missing" if side is None else f"{side.state.value}{f': {side.reason}' if side.reason else ''}"
            return Comparison(name=name, change=Change.UNKNOWN, reason=f"in {which}: {why}")
    assert earlier is not None
    assert later is not None
    ratio = summarize(later.samples).median / later.num_units / (summarize(earlier.samples).median / earlier.num_units)
    band = find_band(earlier.samples, later.samples, least_band)
    if band is None:
        return Comparison(
            name=name, change=Change.UNKNOWN, ratio=ratio, reason="too few repeats to distinguish it from noise"
        )
    # Other work on the machine makes calls slower, never faster: a real change shows in the fastest calls.
    fastest = min(later.samples) / later.num_units / (min(earlier.samples) / earlier.num_units)
    if ratio in band or 1 / (1 + least_band) <= fastest <= 1 + least_band or (ratio > 1) != (fastest > 1):
        change = Change.SAME
    else:
        change = Change.SLOWER if ratio > 1 else Change.FASTER
    return Comparison(name=name, change=change, ratio=ratio, low=band.low, high=band.high)


class Band(NamedTuple):
    """The ratios of medians that noise alone explains; 1 lies inside."""

    low: float
    high: float

    def __contains__(self, ratio: object) -> bool:
        return isinstance(ratio, float) and self.low <= ratio <= self.high


def find_band(before: Sequence[float], after: Sequence[float], least: float = LEAST_BAND) -> Band | None:
    """Return the band of the ratio of the medians, after to before, if both sides differ only by noise.

    Each side's samples, divided by their median, are drawn with replacement; the ratio of the medians of two such draws is
    noise alone, and 95 % of them lie in the band. It reaches at least `least` to both sides. None where a side has too few
    samples to estimate the noise, or one that is not above 0.
    """
    if min(len(before), len(after)) < LEAST_REPEATS or min(*before, *after) <= 0:
        return None
    random = np.random.default_rng(_SEED)
    ratios = _draw_medians(after, random) / _draw_medians(before, random)
    low, high = np.quantile(ratios, [(1 - _COVERED) / 2, (1 + _COVERED) / 2])
    return Band(min(float(low), 1 / (1 + least)), max(float(high), 1 + least))


def _draw_medians(samples: Sequence[float], random: np.random.Generator) -> NDArray[np.float64]:
    """Return the medians of draws, float64 [n], divided by the median of the samples."""
    values = np.asarray(samples, np.float64)
    drawn = random.choice(values, (_NUM_RESAMPLES, len(values)))
    medians: NDArray[np.float64] = np.median(drawn, axis=1) / np.median(values)
    return medians
