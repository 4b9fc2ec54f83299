"""The reference and the compiled evaluator in each mode, on the same candidates: first whether they agree, then how fast."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import torch

from kgverify.bench.agreement import Expectation
from kgverify.bench.calls import WARM_UP, Differs, Sheet, time_build, time_steady, time_warm_up
from kgverify.bench.gauge import (
    NO_LAUNCHES,
    MemoryGauge,
    count_launches,
    forget,
    read_compiled,
    read_environment,
    wait_for,
    with_caches,
)
from kgverify.bench.result import Agreement, BenchResult, Measurement, State
from kgverify.bench.sizes import Size
from kgverify.bench.spread import summarize
from kgverify.bench.work import describe_error, describe_work, draw_sample
from kgverify.engines.compiled.batch_size import POOL, WINDOWS
from kgverify.engines.compiled.execution.compilation import FUSED, MODES, captures_graphs
from kgverify.engines.compiled.execution.device import on_device, resolve_device
from kgverify.engines.compiled.execution_choice import resolve_precision
from kgverify.engines.compiled.layout import choose_layout
from kgverify.engines.compiled.stages.choose import SCORES
from kgverify.engines.compiled.stages.stage_functions import build_stages
from kgverify.engines.compiled.state import Layout
from kgverify.engines.compiled.tick.tick_loop import TICKS_PER_REPLAY
from kgverify.engines.policy import check_policy
from kgverify.engines.protocol import Engine, Progress, no_progress
from kgverify.errors import UserError, suggest
from kgverify.evaluation.proving import prove_candidates
from kgverify.ranking.corrupt import draw_candidates
from kgverify.runs.progress import Phase, silent_phase
from kgverify.runs.run import Run, compiled_pipeline, reference_pipeline
from kgverify.trace.model.columns import Candidates, CandidateSet

REFERENCE: Final = "reference"
EAGER: Final = "eager"

NO_GRAPHS: Final = "on a CPU it is `default` but for its search for faster products; name it in --modes to see it"
"""Why `reduce-overhead` and `max-autotune` are left out on a CPU unless they are asked for."""

NO_KERNELS: Final = "it needs a CUDA device; what Triton's interpreter takes on a CPU tells nothing"

Build: TypeAlias = Callable[[str, Layout], Engine]
"""(mode, layout) -> the evaluator. UserError where the mode is not to be had here, with the reason."""


@dataclass(frozen=True)
class Plan:
    """How it is measured.

    name:    of the size
    modes:   None for all that make a difference on the device
    repeats: of the steady state, at most
    faults:  for the record
    """

    name: str
    size: Size
    modes: tuple[str, ...] | None = None
    device: str = "auto"
    precision: str = "float32"
    repeats: int = 10
    has_fresh_cache: bool = False
    faults: tuple[str, ...] = ()


def measure_modes(run: Run, plan: Plan, build: Build | None = None, phase: Phase = silent_phase) -> BenchResult:
    """Measure the reference and every mode; those that are not to be had are in the result with the reason.

    build: makes the evaluator in a mode, instead of the evaluator as it is.
    Ctrl-C ends it early: what was measured so far is in the result, which says so. UserError for an unknown mode, device or
    precision, and where there is nothing to prove.
    """
    return _Bench(run, plan, build, phase).measure()


def check_modes(modes: Sequence[str]) -> tuple[str, ...]:
    """The modes, each once. UserError for one that there is not."""
    for mode in modes:
        if mode not in MODES:
            raise UserError(
                f"unknown mode {mode!r}", where="--modes", fix=suggest(mode, MODES) or f"choose from {', '.join(MODES)}"
            )
    return tuple(dict.fromkeys(modes))


def choose_bench_layout(run: Run, device: torch.device, slots: int, num_candidates: int) -> Layout:
    """The same sizes for every mode. UserError where the slots take too much memory."""
    slots = max(1, min(slots, num_candidates))
    kind = "cuda" if device.type == "cuda" else "cpu"
    of_match, of_score = WINDOWS[kind]
    return choose_layout(
        run.limits,
        slots=slots,
        match_window=max(1024, of_match * slots),
        score_window=max(run.limits.max_resolvents, of_score * slots),
        pool=min(POOL[kind], num_candidates),
    )


class _Ticks:
    """Counts the ticks of an evaluation by what it tells of its progress: once each tick, or each replay but the first."""

    def __init__(self) -> None:
        self.num_told = 0

    def __call__(self, num_finished: int) -> None:
        self.num_told += 1

    def count(self, num_pools: int, *, is_captured: bool) -> int:
        return (self.num_told + num_pools) * TICKS_PER_REPLAY if is_captured else self.num_told


class _Bench:
    """A benchmark in the making."""

    def __init__(self, run: Run, plan: Plan, build: Build | None, phase: Phase) -> None:
        self._run, self._plan, self._phase = run, plan, phase
        self._device = resolve_device(plan.device)
        self._modes = MODES if plan.modes is None else check_modes(plan.modes)
        check_policy(run.policy, run.graph.program, run.limits)
        # What can be had in no mode is a mistake.
        resolve_precision(plan.precision, run.policy, build_stages(SCORES[run.policy.name]), self._device)
        self._candidates = draw_candidates(run.graph, run.split, run.queries, run.num_corruptions, run.seed)
        self._num = len(self._candidates.query)
        if not self._num:
            raise UserError("there is nothing to prove", where=run.graph.name, fix="choose another split")
        self._layout = choose_bench_layout(run, self._device, plan.size.slots, self._num)
        self._build = self._build_sound if build is None else build
        self._expected: dict[str, Expectation] = {}

    def _build_sound(self, mode: str, layout: Layout) -> Engine:
        options = {"device": str(self._device), "layout": layout, "precision": self._plan.precision}
        return compiled_pipeline(self._run, mode=mode, **options).engine  # type: ignore[arg-type]

    def measure(self) -> BenchResult:
        """Everything, or as far as it came."""
        measurements: list[Measurement] = []
        names = [REFERENCE, *self._modes]
        is_complete = True
        with on_device(self._device, has_products=True):
            environment = read_environment(self._device, is_fresh=self._plan.has_fresh_cache)
            for name in names:
                sheet = Sheet(name, self._num)
                try:
                    measurements.append(self._measure(sheet))
                except KeyboardInterrupt:
                    measurements.append(sheet.close(State.INTERRUPTED, "interrupted"))
                    is_complete = False
                    break
        measurements += [
            Measurement(name=name, state=State.ABSENT, reason="the benchmark was interrupted before it")
            for name in names[len(measurements) :]
        ]
        return BenchResult(
            work=describe_work(
                self._run,
                kind="modes",
                size=self._plan.name,
                num_candidates=self._num,
                slots=self._layout.slots,
                precision=self._plan.precision,
                faults=self._plan.faults,
            ),
            environment=environment,
            unit="candidate",
            measurements=tuple(measurements),
            is_complete=is_complete,
        )

    def _measure(self, sheet: Sheet) -> Measurement:
        try:
            if sheet.name == REFERENCE:
                return self._measure_reference(sheet)
            if self._device.type == "cpu" and sheet.name not in (EAGER, "default"):
                if sheet.name == FUSED:
                    return sheet.close(State.ABSENT, NO_KERNELS)
                if self._plan.modes is None:
                    return sheet.close(State.ABSENT, NO_GRAPHS)
            if sheet.name != EAGER and EAGER not in self._modes and EAGER not in self._expected:
                self._expect_eager()
            return self._measure_mode(sheet)
        except Differs as differs:
            return sheet.close(State.WRONG, str(differs))
        except UserError as error:
            return sheet.close(State.ABSENT, error.message)
        except Exception as error:
            return sheet.close(State.FAILED, describe_error(error))

    def _measure_reference(self, sheet: Sheet) -> Measurement:
        rows = draw_sample(self._num, self._plan.size.sample, self._run.seed)
        some = self._candidates.take(rows)
        sheet.num_units = len(rows)
        host = torch.device("cpu")
        memory = MemoryGauge(host)
        engine = time_build(sheet, lambda: reference_pipeline(self._run).engine, _wait_for_nothing)

        def check(ends: Candidates) -> list[Agreement]:
            if REFERENCE not in self._expected:
                steps = ends.num_steps.astype(np.int64)
                error = engine.info.score_error
                self._expected[REFERENCE] = Expectation(
                    REFERENCE, engine.prove, error, rows, ends, steps, self._name_candidate
                )
            return []

        def prove() -> Candidates:
            return engine.prove(some).candidates

        sheet.compile_seconds = 0.0
        with self._phase(f"{REFERENCE}, {len(rows):,} candidates", self._num_calls) as progress:
            time_warm_up(sheet, prove, check, _wait_for_nothing, progress)
            memory.restart()
            self._time_steady(sheet, prove, check, _wait_for_nothing, progress)
        self._note_memory(sheet, memory)
        sheet.unmeasured["launches"] = "the reference launches nothing"
        return sheet.close(State.TIMED)

    def _measure_mode(self, sheet: Sheet) -> Measurement:
        mode = sheet.name
        forget(self._device)
        memory = MemoryGauge(self._device)
        ticks = _Ticks()

        def wait() -> None:
            wait_for(self._device)

        def prove(progress: Progress = no_progress) -> Candidates:
            return prove_candidates(engine, self._candidates, progress)[0]

        def check(ends: Candidates) -> list[Agreement]:
            error = engine.info.score_error
            compared = [each.compare(ends, error) for each in self._expected.values() if each.against != mode]
            if mode == EAGER and EAGER not in self._expected:
                self._expected[EAGER] = self._expect(ends, error)
            return compared

        with (
            with_caches(self._plan.has_fresh_cache and mode != EAGER),
            self._phase(mode, self._num_calls) as progress,
        ):
            engine = time_build(sheet, lambda: self._build(mode, self._layout), wait)
            time_warm_up(sheet, prove, check, wait, progress)
            if not sheet.agreements:
                return sheet.close(State.UNDECIDED, "there is nothing to compare it with")
            sheet.compile_seconds, sheet.cache = read_compiled()
            memory.restart()
            self._time_steady(sheet, prove, check, wait, progress)
            self._note_memory(sheet, memory)
            self._note_compiled(sheet)
            prove(ticks)
            if hasattr(engine, "evaluate"):
                num_pools = -(-self._num // self._layout.pool)
                sheet.ticks = ticks.count(num_pools, is_captured=captures_graphs(mode, self._device))
            else:
                sheet.unmeasured["ticks"] = "a fault stands between the engine and what asks it"
            note_launches(sheet, prove, self._device)
        return sheet.close(State.TIMED)

    def _expect_eager(self) -> None:
        """What eager gives, where it is not measured itself; nothing where it is not to be had."""
        with self._phase("eager, to compare with", 1) as progress:
            engine = self._build(EAGER, self._layout)
            ends = prove_candidates(engine, self._candidates)[0]
            self._expected[EAGER] = self._expect(ends, engine.info.score_error)
            progress(1)

    def _expect(self, ends: Candidates, score_error: float) -> Expectation:
        # Built anew, since where all agree, which is nearly always, there is no need of it, and of its memory.
        def prove(some: CandidateSet) -> Any:
            return self._build(EAGER, self._layout).prove(some)

        rows, most = np.arange(self._num), self._run.limits.max_depth
        return Expectation(EAGER, prove, score_error, rows, ends, most, self._name_candidate)

    @property
    def _num_calls(self) -> int:
        return WARM_UP + self._plan.repeats

    def _time_steady(self, sheet: Sheet, prove: Any, check: Any, wait: Callable[[], None], progress: Progress) -> None:
        repeats, seconds = self._plan.repeats, self._plan.size.seconds
        time_steady(sheet, prove, check, wait, repeats=repeats, seconds=seconds, progress=progress)

    def _note_memory(self, sheet: Sheet, memory: MemoryGauge) -> None:
        sheet.peak_bytes, reason = memory.read()
        if reason:
            sheet.unmeasured["memory"] = reason

    def _note_compiled(self, sheet: Sheet) -> None:
        """Of modes that torch does not compile: by what the start took beyond a steady call."""
        if sheet.name == EAGER:
            sheet.compile_seconds = 0.0
        elif sheet.compile_seconds is None and sheet.build_seconds is not None:
            steady = summarize(sheet.samples).median
            sheet.compile_seconds = max(0.0, sheet.build_seconds + sum(sheet.warm_up) - WARM_UP * steady)

    def _name_candidate(self, row: int) -> str:
        names = self._run.graph.program.symbols
        predicate, first, second = self._candidates.atom[row].tolist()
        return f"{names.predicates[predicate]}({names.constants[first]}, {names.constants[second]})"


def note_launches(sheet: Sheet, call: Callable[[], Any], device: torch.device) -> None:
    """Launches and device time of one call more, under the profiler."""
    if device.type != "cuda":
        sheet.unmeasured["launches"] = NO_LAUNCHES
        return
    try:
        sheet.launches, sheet.device_seconds = count_launches(call, device)
    except RuntimeError as error:
        sheet.unmeasured["launches"] = describe_error(error)


def _wait_for_nothing() -> None:
    pass
