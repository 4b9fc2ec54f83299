"""The rounding of an engine's scores, measured by changes that affect rounding and nothing else.

Every operation of the engine's own code is repeated with random errors of one rounding (Monte Carlo arithmetic; Parker 1997),
and in float64; the same steps are also taken in another order and in other batches. An engine whose scores are wrong for
another reason, such as stale scores, does not widen its bound: it is the judge who adds the errors.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from time import perf_counter
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.columns import pair_steps
from kgverify.comparison.compare import Comparer
from kgverify.comparison.rankings import NO_ROWS
from kgverify.comparison.result import Comparison, Divergence, Verdict
from kgverify.engines.protocol import Engine, Positions, positions_of, take_positions
from kgverify.errors import count_of, use_words
from kgverify.interrupts import is_interrupt
from kgverify.trace.model.column_reader import ColumnReader
from kgverify.trace.model.columns import Columns, Resolvents, expand_rows, select_candidates, select_steps, starts_of
from kgverify.trace.model.header import Header
from kgverify.trace.model.score_tolerance import (
    MAX_SIZE,
    OWN_ENGINES,
    ROUNDINGS_UNKNOWN,
    UNIT_ROUNDOFF,
    ScoreTolerance,
    bound_by_type,
    bound_score_error,
    describe_source,
    find_float_type,
    name_coarser_type,
    name_precision,
    name_unit,
    round_up,
    size_of_unit,
    size_typically,
)
from kgverify.trace.model.trace import Trace

MARGIN: Final = 8.0
"""The ratio of a bound to the largest change seen. Of 20,000 correct scores on a CPU and on GPUs, none changed by a bound."""
NUM_DRAWS: Final = 2
MAX_STEPS: Final = 96
"""The most steps that are measured; their candidates are spread over the run."""
MAX_CANDIDATES: Final = 48
MAX_LOADED: Final = 10_000
"""The most divergences for which to seek the tolerance that would count them all as rounding."""
MAX_RECORDED: Final = 1_000
"""The largest number of candidates whose recorded scores are read to find a tolerance."""
MAX_ITEMS: Final = 256
"""The most items of a list or mapping that is searched for arrays: longer ones hold facts or names."""
MAX_OBJECTS: Final = 10_000
"""The most objects of an engine that are searched for arrays."""

MAX_RATIO: Final = 4.0
"""The largest accepted ratio of the actual engine's error to the expected engine's, in the same float type."""

SCORES: Final = "resolvents.score"
_OF_SCORES: Final = frozenset({SCORES, "candidates.log_probability"})
MAX_ROUNDS: Final = 6
"""The most tolerances to try in search of one that would make the verdict AGREE."""
T = TypeVar("T")
_CODE: Final = (type, ModuleType, FunctionType, MethodType)


class EngineRun(NamedTuple):
    """The run of one side: its trace, and a second run of some of its candidates.

    rows:    the candidates that were proved again
    again:   their columns in the second run; None if no candidate was proved again
    stepped: the engine's steps from the expected goals, each as a candidate with one step; None if it took none
    """

    role: str
    engine: Engine
    trace: Trace
    rows: NDArray[np.int64] = NO_ROWS
    again: Columns | None = None
    stepped: Columns | None = None


class _Measured(NamedTuple):
    """A bound on the error of one engine's scores, in nats, and its evidence in words."""

    bound: float
    evidence: str

    def capped(self, most: float) -> "_Measured":
        """Return the bound, limited to what is plausible for a correct engine."""
        if self.bound <= most:
            return self
        return _Measured(most, f"{self.evidence}; more than {most:.2g} is not accepted")


def _find_most(expected: _Measured | None, resolvents: Resolvents, float_types: list[str]) -> float:
    """Return the largest bound that is accepted for the engine under test."""
    if expected is None:
        return MAX_RATIO * bound_by_type(resolvents, float_types[1])
    return MAX_RATIO * expected.bound * UNIT_ROUNDOFF[float_types[1]] / UNIT_ROUNDOFF[float_types[0]]


def measure_tolerance(sides: tuple[EngineRun, EngineRun], accepted: float | str | None = None) -> ScoreTolerance | None:
    """Return the tolerance of scores between two engines that ran; None if it is known, or if all their scores are equal.

    accepted: the error of the actual scores that the user accepts, in nats, or the float type whose errors are accepted
    """
    return None if _are_all_equal(sides) else measure_bounds(sides, accepted)


def measure_bounds(sides: tuple[EngineRun, EngineRun], accepted: float | str | None = None) -> ScoreTolerance | None:
    """Return the tolerance as `measure_tolerance` does, even if all scores are equal; None if it is known."""
    scores = [side.trace.columns.resolvents.score for side in sides]
    is_known = all(side.trace.header.engine.name in OWN_ENGINES for side in sides)
    lacks_scores = any(SCORES not in side.trace.fields for side in sides)
    if isinstance(accepted, float | int) or is_known or lacks_scores:
        return None
    float_types = [_name_float_type(side.trace.header, each) for side, each in zip(sides, scores, strict=True)]
    if accepted is not None:
        float_types[1] = accepted
    rows = _choose(sides[0].trace.reader)
    measured = [_measure(side, rows, name, accepted) for side, name in zip(sides, float_types, strict=True)]
    if accepted is None and name_coarser_type(*scores):
        # Its scores jump between neighbouring short numbers, whatever is changed.
        measured[1] = None
    if measured[1] is not None:
        measured[1] = measured[1].capped(_find_most(measured[0], sides[1].trace.columns.resolvents, float_types))
    found = [_bound(sides, i, measured, float_types[i]) for i in range(2)]
    evidence = [
        f"{side.role} {side.trace.header.engine.name}: {words}" for side, (_, words) in zip(sides, found, strict=True)
    ]
    if accepted is not None:
        evidence[1] += f"; the user accepts errors of {accepted}"
    return _join([bound for bound, _ in found], evidence, float_types, scores)


def _bound(
    sides: tuple[EngineRun, EngineRun], i: int, measured: Sequence[_Measured | None], float_type: str
) -> tuple[float, str]:
    """Return the bound on the error of a side's scores, in nats, and its evidence: computed, measured, or by float type."""
    header, known = sides[i].trace.header, measured[i] or measured[1 - i]
    by_policy, words = _bound_by_policy(header, float_type)
    if header.engine.name in OWN_ENGINES:
        return by_policy, words
    if known is None:
        weak = max(by_policy, bound_by_type(sides[i].trace.columns.resolvents, float_type))
        return weak, f"{weak:.2g} nats, from {float_type} alone: its arithmetic cannot be changed"
    other = f"that of {sides[1 - i].trace.header.engine.name}, since its own code shows none: "
    source = "" if known is measured[i] else other
    return known.bound, f"{known.bound:.2g} nats, measured, {source}{known.evidence}"


def _bound_by_policy(header: Header, float_type: str) -> tuple[float, str]:
    """Return the bound on the error of an own engine's scores, in nats, and its evidence."""
    bound = bound_score_error(header.policy, float_type)
    return bound, f"{bound:.2g} nats, {describe_source(header.policy, float_type)}"


def bound_recorded(comparer: Comparer, comparison: Comparison, accepted: float | str | None) -> ScoreTolerance | None:
    """Return a weaker tolerance for recorded scores that differ: without an engine, only their float type is known.

    Each score may be off by some roundings of itself, or of a typical score, since sums cancel. The tolerance is the largest such
    error among the scores that differ, but stays below every difference that exceeds its own error.
    """
    headers = [source.header for source in comparer.sources]
    is_own = [header.engine.name in OWN_ENGINES for header in headers]
    fields = {*_OF_SCORES, "steps.choice"}
    found = np.unique([each.candidate for each in comparison.divergences if each.field in fields])
    if isinstance(accepted, float | int) or not len(found) or not comparer.has_scores or all(is_own):
        return None
    pair = comparer.pair_of(_spread(found.astype(np.int64), MAX_RECORDED))
    sides = pair.expected.columns, pair.actual.columns
    scores = [side.resolvents.score for side in sides]
    # A short type allows errors of any size: the user must accept it.
    named = [_name_float_type(header, each) for header, each in zip(headers, scores, strict=True)]
    float_types = [min(each, "float32", key=UNIT_ROUNDOFF.__getitem__) for each in named]
    float_types[1] = accepted or float_types[1]
    exact, share, evidence = 0.0, 0.0, []
    for role, header, float_type, is_ours in zip(("expected", "actual"), headers, float_types, is_own, strict=True):
        by_policy, words = _bound_by_policy(header, float_type)
        exact += by_policy if is_ours else 0.0
        share += 0.0 if is_ours else ROUNDINGS_UNKNOWN * UNIT_ROUNDOFF[float_type]
        other = f"{ROUNDINGS_UNKNOWN} roundings of {float_type} of each score, since a recorded engine cannot be asked"
        evidence.append(f"{role} {header.engine.name}: {words if is_ours else other}")
    rows = pair_steps(*(side.candidates.num_steps for side in sides))
    left, right = _align_scores(select_steps(sides[0], rows.expected), select_steps(sides[1], rows.actual))
    sizes, apart = np.maximum(np.abs(left), np.abs(right)), np.abs(left - right)
    typical = size_typically(sides[0].resolvents)
    bounds = exact + share * np.clip(sizes, typical, MAX_SIZE * typical)
    fits = apart <= bounds
    value = exact + share * typical
    if len(found) <= MAX_RECORDED:
        # Scores that were not read might differ by less, and still by more than their own errors.
        value = max(value, bounds[fits & (apart > 0)].max(initial=0.0))
    return _join([min(value, 0.99 * apart[~fits].min(initial=np.inf))], evidence, float_types, scores)


def _join(
    bounds: Sequence[float], evidence: Sequence[str], float_types: Sequence[str], scores: Sequence[NDArray[np.floating]]
) -> ScoreTolerance:
    """Return the tolerance of two sides, in units of the coarser float type."""
    coarse = max(float_types, key=UNIT_ROUNDOFF.__getitem__)
    return ScoreTolerance(sum(bounds), (), coarse, size_of_unit(np.concatenate(scores), coarse), tuple(evidence))


def _are_all_equal(sides: tuple[EngineRun, EngineRun]) -> bool:
    """Return whether all scores are equal in every bit: between the sides, between two runs of a side, and in lockstep."""
    columns = [side.trace.columns for side in sides]
    pairs = [(columns[0], columns[1])]
    pairs += [(s.trace.reader.gather_candidates(s.rows), s.again) for s in sides if s.again is not None]
    scores = [(first.resolvents.score, other.resolvents.score) for first, other in pairs]
    scores += [(first.candidates.log_probability, other.candidates.log_probability) for first, other in pairs]
    scores += [(columns[0].resolvents.score, s.stepped.resolvents.score) for s in sides if s.stepped is not None]
    return all(np.array_equal(first, other, equal_nan=True) for first, other in scores)


def _name_float_type(header: Header, scores: NDArray[np.floating]) -> str:
    """Return the float type in which a side computes: the declared type, but float32 if the scores are float32 numbers.

    Scores that fit a shorter type are exact in every type, and say nothing about it.
    """
    declared = name_precision(header.engine.precision)
    is_float32 = scores.dtype == np.float32 or find_float_type(scores) == "float32"
    return "float32" if declared == "float64" and is_float32 else declared


def _spread(rows: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Return at most this number of rows, spread evenly."""
    return rows[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), most)).astype(np.int64))]


def _choose(reader: ColumnReader) -> Positions:
    """Return the positions of steps that list resolvents, spread over a run."""
    some = reader.gather_candidates(_spread(np.arange(reader.num_candidates), MAX_CANDIDATES))
    return take_positions(positions_of(some), _spread(np.flatnonzero(some.steps.num_resolvents > 0), MAX_STEPS))


def _measure(side: EngineRun, positions: Positions, float_type: str, accepted: float | str | None) -> _Measured | None:
    """Measure the error of an engine's scores; return None if its arithmetic cannot be changed, or the engine is random."""
    unit, short = _find_units(float_type, is_declared=accepted is None)
    if side.trace.header.engine.name in OWN_ENGINES or not len(positions.depth):
        return None
    engine, is_judged = side.engine, side.role == "actual"
    first, exact = (_take(engine, positions, 0.0, 0) for _ in range(2))
    if first is None or exact is None or _is_random(first, exact, side):
        return None
    drawn = [_take(engine, positions, unit, seed, short) for seed in range(NUM_DRAWS)]
    changes = [_largest_change(exact, each) for each in drawn if each is not None]
    change = max(changes, default=0.0)
    if not change:
        return None
    words = (
        f"{MARGIN:g} times the change by random errors in each operation, in {count_of(len(positions.depth), 'step')}"
    )
    in_float64 = _take(engine, positions, None, 0)
    if in_float64 is not None and find_float_type(in_float64.resolvents.score) == "float64":
        off = _largest_change(exact, in_float64)
        words += f"; in float64 its scores differ by {off:.2g}"
        if off > MARGIN * change:
            words += f", more than roundings of {name_unit(unit)} explain"
        elif not is_judged:
            change = max(change, off)
    spread = _find_spread(engine, positions)
    words += f"; in another order and another batch by {spread:.2g}" if spread is not None else ""
    return _Measured(MARGIN * change, words)


def _find_units(float_type: str, *, is_declared: bool = True) -> tuple[float, float]:
    """Return the relative rounding errors of a float type: that of numbers in general, and that of 16-bit numbers."""
    short = UNIT_ROUNDOFF[float_type]
    # The short type is only declared by the engine; the effect of its own 16-bit numbers is measured as it is.
    return UNIT_ROUNDOFF["float32"] if is_declared and float_type in ("fp16", "bf16") else short, short


def _is_random(first: Columns, second: Columns, side: EngineRun) -> bool:
    """Return whether scores change by more than rounding if the same steps are repeated: then measuring is pointless."""
    weak = bound_by_type(side.trace.columns.resolvents, "float32")
    return _largest_change(first, second) > weak / 8


def _find_spread(engine: Engine, positions: Positions) -> float | None:
    """Return the largest change of a score in another order and another batch; None if the engine fails."""
    num = len(positions.depth)
    rows = np.concatenate((np.arange(0, num, 2)[::-1], np.arange(0, num, 2)))
    first, other = (_call(partial(engine.step, each)) for each in (positions, take_positions(positions, rows)))
    if first is None or other is None or len(other.steps.depth) != len(rows):
        return None
    return _largest_change(select_candidates(first, rows), other)


def _largest_change(first: Columns, second: Columns) -> float:
    """Return the largest difference between two scores, in steps that list the same resolvents in the same order."""
    if len(first.steps.depth) != len(second.steps.depth):
        return 0.0
    return float(np.abs(np.subtract(*_align_scores(first, second))).max(initial=0.0))


def _align_scores(first: Columns, second: Columns) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the finite scores of the resolvents that both sides list at the same place of the same step, from the same goal."""
    counts = first.steps.num_resolvents
    sums = [_sum_atoms(each.steps.goal_atoms, each.steps.num_atoms) for each in (first, second)]
    alike = np.flatnonzero((counts == second.steps.num_resolvents) & (counts > 0) & (sums[0] == sums[1]))
    sides = []
    for each in (first, second):
        rows = expand_rows(starts_of(each.steps.num_resolvents), alike)
        contents = _sum_atoms(each.resolvents.atoms, each.resolvents.num_atoms)[rows]
        sides.append((contents, each.resolvents.score[rows].astype(np.float64)))
    (contents, left), (others, right) = sides
    is_shared = (contents == others) & np.isfinite(left) & np.isfinite(right)
    return left[is_shared], right[is_shared]


def _sum_atoms(atoms: NDArray[np.int32], num_atoms: NDArray[Any]) -> NDArray[np.int64]:
    """Return a sum of the atoms of each goal, weighted by position: equal goals have equal sums."""
    starts = starts_of(num_atoms)
    weights = 1 + np.arange(len(atoms)) - np.repeat(starts[:-1], np.diff(starts))
    total = np.concatenate(([0], np.cumsum((atoms.astype(np.int64) @ np.array([1, 1 << 20, 1 << 40])) * weights)))
    sums: NDArray[np.int64] = total[starts[1:]] - total[starts[:-1]]
    return sums


def bound_tapped(engine: object, read: Callable[[], Sequence[float]], float_type: str) -> float:
    """Return a bound on the rounding of the numbers that a tap shows; 0 if they cannot be computed in other arithmetic.

    The bound is that of scores: `MARGIN` times the largest change by random errors of one rounding in each operation.
    """
    unit, short = _find_units(float_type)
    exact, *drawn = (
        _repeat(engine, read, size, seed, short) for size, seed in ((0.0, 0), *((unit, i) for i in range(NUM_DRAWS)))
    )
    if exact is None or any(each is None or len(each) != len(exact) for each in drawn):
        return 0.0
    change = max(float(np.abs(np.subtract(each, exact)).max(initial=0.0)) for each in drawn if each is not None)
    return MARGIN * change


def _take(
    engine: Engine, positions: Positions, unit: float | None, seed: int, short: float | None = None
) -> Columns | None:
    """Take the steps in other arithmetic: with relative errors up to `unit`, or in float64; None if the engine fails."""
    return _repeat(engine, partial(engine.step, positions), unit, seed, short)


def _repeat(engine: Any, call: Callable[[], T], unit: float | None, seed: int, short: float | None = None) -> T | None:
    """Return the result of a call in other arithmetic; None if it fails."""
    with ExitStack() as stack:
        if "torch" in sys.modules:
            from kgverify.torch.arithmetic import other_arithmetic

            stack.enter_context(other_arithmetic(unit, seed, short))
        if unit != 0.0:
            stack.enter_context(_other_arrays(engine, unit, np.random.default_rng(seed)))
        return _call(call)


def _call(step: Callable[[], T]) -> T | None:
    try:
        return step()
    except BaseException as error:
        # An engine may be unable to compute in other arithmetic.
        if is_interrupt(error):
            raise
        return None


@contextmanager
def _other_arrays(engine: Any, unit: float | None, random: np.random.Generator) -> Iterator[None]:
    """Replace the float arrays of an engine and of its module until the context ends.

    unit: the largest relative error to add; None to convert the arrays to float64
    """
    replaced: list[tuple[dict[str, Any], str, Any]] = []
    seen: set[int] = set()

    def other(value: Any, depth: int) -> Any:
        if hasattr(value, "dtype") and hasattr(value, "shape") and type(value).__module__.partition(".")[0] != "torch":
            return _other_array(value, unit, random)
        if depth > 4 or id(value) in seen or len(seen) > MAX_OBJECTS:
            return value
        if type(value) in (dict, list, tuple) and len(value) <= MAX_ITEMS:
            seen.add(id(value))
            before = list(value.values() if isinstance(value, dict) else value)
            after = [other(each, depth + 1) for each in before]
            if all(x is y for x, y in zip(before, after, strict=True)):
                return value
            return dict(zip(value, after, strict=True)) if isinstance(value, dict) else type(value)(after)
        if isinstance(getattr(value, "__dict__", None), dict) and not isinstance(value, _CODE):
            visit(value, depth + 1)
        return value

    def visit(owner: Any, depth: int) -> None:
        seen.add(id(owner))
        names: dict[str, Any] = vars(owner)
        for name, value in list(names.items()):
            changed = other(value, depth)
            if changed is not value:
                replaced.append((names, name, value))
                names[name] = changed

    try:
        visit(engine, 0)
        for owner in [each for each in map(type, _unwrap(engine)) if each.__module__.partition(".")[0] != "kgverify"]:
            module = sys.modules.get(owner.__module__)
            if module is not None and id(module) not in seen:
                visit(module, 3)
        yield
    finally:
        for names, name, value in reversed(replaced):
            names[name] = value


def _unwrap(engine: Any) -> Iterator[Any]:
    """Yield an engine, and the engines that it wraps."""
    while engine is not None:
        yield engine
        engine = getattr(engine, "_engine", None)


def _other_array(value: Any, unit: float | None, random: np.random.Generator) -> Any:
    """Return an array of NumPy or JAX with errors added, or in float64; leave an array without fractions unchanged."""
    try:
        host = np.asarray(value)
        if host.dtype.kind != "f" or not host.size or (host == np.trunc(host)).all():
            return value
        if unit is None:
            return value.astype(np.float64)
        noise = 1 + 2 * unit * random.uniform(-1.0, 1.0, host.shape)
        return value * noise.astype(host.dtype) if host.dtype.itemsize < 8 else value * noise
    except (TypeError, ValueError, RuntimeError):
        return value


def describe_rounding(comparison: Comparison) -> list[str]:
    """Return notes on the scores that differ in bits but count as equal, and on the bound of each side."""
    found = comparison.rounding
    if found is None or not (found.num_differing or comparison.near_ties or found.evidence):
        return []
    return [*filter(None, [found.in_words]), *(f"rounding, {each}" for each in found.evidence)]


def name_way_out(comparer: Comparer, comparison: Comparison) -> list[str]:
    """Return a note on the tolerance that would make the verdict AGREE, if only scores differ."""
    rows = np.unique([each.candidate for each in comparison.divergences])
    # A replay changes the fields of divergences.
    compared = comparer.comparison.divergences
    is_of_scores = {each.field for each in compared} <= _OF_SCORES and comparer.num_found <= MAX_LOADED
    is_of_scores &= len(compared) == len(comparison.divergences)
    if not len(rows) or not is_of_scores or comparison.verdict is not Verdict.DIVERGE or comparer.lockstep:
        return []
    sides = comparer.load_pairs(rows)
    notes: list[str] = []
    given = comparer.accepted
    is_accepted = (
        any("the user accepts" in each for each in given.evidence) if isinstance(given, ScoreTolerance) else given
    )
    accepted = comparer.score_tolerance
    for _ in range(MAX_ROUNDS):
        tried = Comparer(*sides, comparer.alike._replace(tolerance=ScoreTolerance(accepted)))
        found = tried.compare()
        if not notes and not is_accepted and (short := _name_helpful_type(tried)):
            notes.append(
                f"every actual score that differs is exact in {short}: --score-error {short} accepts errors of that type"
            )
        if not found.divergences:
            notes.append(
                f"all {count_of(len(comparison.divergences), 'divergence')} are of scores: --score-error"
                f" {round_up(accepted)} would count them as rounding, and hide every fault that changes scores by less than"
                f" {comparer.describe_difference(accepted)}"
            )
            break
        # Behind a score that counts as rounding, a list may differ.
        if {each.field for each in found.divergences} - _OF_SCORES:
            break
        needed = max(_needed(each, tried) for each in found.divergences)
        if not accepted < needed < float("inf"):
            break
        accepted = needed
    return [*map(use_words, notes)]


def _name_helpful_type(comparer: Comparer) -> str:
    """Return the short float type of the differing scores, if a few of its roundings explain each; else an empty text."""
    pairs = [pair for views in comparer.views.values() for pair in zip(*(v.resolvents for v in views), strict=False)]
    if not pairs:
        return ""
    e, a = (np.array([each.score for each in side], np.float64) for side in zip(*pairs, strict=True))
    name = find_float_type(a)
    with np.errstate(invalid="ignore"):
        is_near = (e == a) | (np.abs(e - a) <= 4 * UNIT_ROUNDOFF[name] * np.maximum(np.abs(e), np.abs(a)))
    return name if name in ("fp16", "bf16") and bool(is_near.all()) else ""


def _needed(divergence: Divergence, comparer: Comparer) -> float:
    """Return the smallest tolerance of scores at which a divergence of scores would disappear."""
    views = comparer.views.get((divergence.candidate, divergence.step))
    if views is None:
        pair = comparer.pair_of(np.array([divergence.candidate]))
        sides = [each.columns.candidates for each in (pair.expected, pair.actual)]
        sums = [float(each.log_probability[0]) for each in sides]
        return abs(sums[0] - sums[1]) / (2 * max(1, int(sides[0].num_steps[0])))
    pairs = zip(*(view.resolvents for view in views), strict=True)
    return max((abs(e.score - a.score) for e, a in pairs if e.score != a.score), default=0.0)


class CompilationLog:
    """The number of compilations by torch, in each run of an engine and after all runs."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}
        self._end = count_compilations()

    @contextmanager
    def of(self, title: str, part: str) -> Iterator[None]:
        """Count the compilations of a run."""
        before, began = count_compilations(), perf_counter()
        yield
        self._end = count_compilations()
        num, seconds = self._end[0] - before[0], self._end[1] - before[1]
        if num or title in self._lines:
            took = f", {seconds:.1f} of its {perf_counter() - began:.1f} s" if num else ""
            self._lines.setdefault(title, []).append(f"{num} in {part}{took}")

    def describe(self) -> list[str]:
        """Return a note for each engine that compiled, and a note on later compilations."""
        later = count_compilations()[0] - self._end[0]
        notes = [f"compilations by torch, {title}: {'; '.join(parts)}" for title, parts in self._lines.items()]
        if notes or later:
            notes.append(f"measurements and replays caused {count_of(later, 'compilation')}")
        return notes


def count_compilations() -> tuple[int, float]:
    """Return the compilations by `torch.compile` so far in this process, and the seconds that they took."""
    times = getattr(sys.modules.get("torch._dynamo.utils"), "compilation_time_metrics", {})
    taken = times.get("_compile.compile_inner", ())
    return len(taken), float(sum(taken))
