"""The benchmark of the reference and of each mode of the compiled evaluator, compared on the same candidates, then timed."""

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import torch

from kgverify.bench.agreement import Expectation
from kgverify.bench.plan import Plan, describe_work, draw_sample
from kgverify.bench.result import Agreement, BenchResult, Measurement, State, read_environment, summarize
from kgverify.bench.timing import (
    WARM_UP,
    Check,
    MemoryGauge,
    Stopwatch,
    WrongResult,
    describe_failure,
    forget,
    read_compiled,
    wait_for,
)
from kgverify.engines.compiled.batch_size import POOL, WINDOWS
from kgverify.engines.compiled.execution.caches import fresh_caches
from kgverify.engines.compiled.execution.compilation import FUSED, MODES, captures_graphs
from kgverify.engines.compiled.execution.device import on_device, resolve_device
from kgverify.engines.compiled.execution_choice import resolve_precision
from kgverify.engines.compiled.layout import choose_layout
from kgverify.engines.compiled.stages.choose import SCORES
from kgverify.engines.compiled.stages.stage_functions import build_stages
from kgverify.engines.compiled.state import Layout
from kgverify.engines.compiled.tick.tick_loop import TICKS_PER_REPLAY
from kgverify.engines.native.choice import NATIVE
from kgverify.engines.policy import check_policy
from kgverify.engines.protocol import Engine, Progress, no_progress
from kgverify.errors import UserError, suggest
from kgverify.evaluation.proving import prove_candidates
from kgverify.ranking.corrupt import draw_candidates
from kgverify.runs.profiling import profile_device
from kgverify.runs.progress import Phase, silent_phase
from kgverify.runs.run import Run, compiled_pipeline, reference_pipeline
from kgverify.trace.model.columns import Candidates, CandidateSet

REFERENCE: Final = "reference"
EAGER: Final = "eager"
ENGINE: Final = "engine"
"""The row of an engine that is not the compiled evaluator."""

NO_GRAPHS: Final = "on a CPU it is `default` but for its search for faster products; name it in --modes to see it"
"""The reason to leave out `reduce-overhead` and `max-autotune` on a CPU unless they are named."""

NO_KERNELS: Final = "it needs a CUDA device; the times of Triton's interpreter on a CPU mean nothing"

Build: TypeAlias = Callable[[str, Layout], Engine]
"""(mode, layout) -> the evaluator. UserError with the reason where the mode is unavailable here."""


class Rivals(NamedTuple):
    """The engines to measure, if they are not the reference prover and the compiled evaluator in each mode.

    reference, engine:            their names, by which the user gave them; no engine for the modes of the evaluator
    make_reference, make_engine:  make them
    """

    reference: str
    make_reference: Callable[[], Engine]
    engine: str = ""
    make_engine: Callable[[], Engine] | None = None


def measure_modes(
    run: Run,
    plan: Plan,
    build: Build | None = None,
    phase: Phase = silent_phase,
    rivals: Rivals | None = None,
) -> BenchResult:
    """Measure the reference and every mode; unavailable modes are in the result with the reason.

    build:  makes the evaluator in a mode, instead of the usual one, such as one with a fault
    rivals: other engines that are measured in the same way

    Ctrl-C ends the benchmark early with an incomplete result. UserError for an unknown mode, device or precision, and where
    there is nothing to prove.
    """
    if rivals is None:
        rivals = Rivals(REFERENCE, lambda: reference_pipeline(run).engine)
    return _Bench(run, plan, build, phase, rivals).measure()


def check_modes(modes: Sequence[str]) -> tuple[str, ...]:
    """Return the modes, each once. UserError for an unknown one."""
    for mode in modes:
        if mode not in MODES:
            raise UserError(
                f"unknown mode {mode!r}", where="--modes", fix=suggest(mode, MODES) or f"choose from {', '.join(MODES)}"
            )
    return tuple(dict.fromkeys(modes))


def choose_bench_layout(run: Run, device: torch.device, slots: int, num_candidates: int) -> Layout:
    """Choose the sizes for all modes. UserError where the slots take too much memory."""
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


class _Bench:
    """A running benchmark."""

    def __init__(self, run: Run, plan: Plan, build: Build | None, phase: Phase, rivals: Rivals) -> None:
        self._run, self._plan, self._phase, self._rivals = run, plan, phase, rivals
        self._device = resolve_device(plan.device)
        self._modes = MODES if plan.modes is None else check_modes(plan.modes)
        check_policy(run.policy, run.graph.program, run.limits)
        # A precision that is unavailable in every mode is a mistake.
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
        return compiled_pipeline(self._run, mode=mode, **options).engine

    def measure(self) -> BenchResult:
        """Measure everything, until an interruption."""
        measurements: list[Measurement] = []
        names = [REFERENCE, *([ENGINE] if self._rivals.make_engine is not None else self._modes)]
        is_complete = True
        with warnings.catch_warnings(), on_device(self._device, has_products=True):
            # Even where warnings are errors, those of torch are not an error of a mode.
            warnings.simplefilter("ignore")
            environment = read_environment(self._device.type, has_fresh_cache=self._plan.has_fresh_cache)
            for name in names:
                watch = Stopwatch(name, self._num)
                try:
                    is_fresh = self._plan.has_fresh_cache and name not in (REFERENCE, EAGER, NATIVE)
                    # Errors must not pass through it: torch would keep its folder.
                    with fresh_caches() if is_fresh else nullcontext():
                        measurements.append(self._measure(watch))
                except KeyboardInterrupt:
                    measurements.append(watch.close(State.INTERRUPTED, "interrupted"))
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
                reference=self._rivals.reference,
                engine=self._rivals.engine,
            ),
            environment=environment,
            unit="candidate",
            measurements=tuple(measurements),
            is_complete=is_complete,
        )

    def _measure(self, watch: Stopwatch) -> Measurement:
        try:
            if watch.found.name == REFERENCE:
                return self._measure_reference(watch)
            if watch.found.name == ENGINE and self._rivals.make_engine is not None:
                return self._measure_engine(watch, self._rivals.make_engine)
            if self._device.type == "cpu" and watch.found.name not in (EAGER, "default", NATIVE):
                if watch.found.name == FUSED:
                    return watch.close(State.ABSENT, NO_KERNELS)
                if self._plan.modes is None:
                    return watch.close(State.ABSENT, NO_GRAPHS)
            if watch.found.name != EAGER and EAGER not in self._modes and EAGER not in self._expected:
                self._expect_eager()
            return self._measure_mode(watch)
        except WrongResult as error:
            return watch.close(State.WRONG, str(error))
        except UserError as error:
            if watch.found.name in (REFERENCE, ENGINE) and (self._rivals.engine or self._rivals.reference != REFERENCE):
                # Not a mode that is unavailable here, but a mistake of the user's engine.
                raise
            return watch.close(State.ABSENT, error.message)
        except Exception as error:
            return watch.close(State.FAILED, describe_failure(error))

    def _measure_reference(self, watch: Stopwatch) -> Measurement:
        rows = draw_sample(self._num, self._plan.size.sample, self._run.seed)
        some = self._candidates.take(rows)
        watch.found.num_units = len(rows)
        memory = MemoryGauge(torch.device("cpu"))
        engine = watch.time_build(self._rivals.make_reference)

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

        watch.found.compile_seconds = 0.0
        with self._phase(f"{REFERENCE}, {len(rows):,} candidates", self._num_calls) as progress:
            watch.time_warm_up(prove, check, progress)
            self._time_steady(watch, prove, check, memory, progress)
        watch.found.unmeasured["launches"] = "the reference launches nothing"
        return watch.close(State.TIMED)

    def _measure_engine(self, watch: Stopwatch, make: Callable[[], Engine]) -> Measurement:
        memory = MemoryGauge(torch.device("cpu"))
        engine = watch.time_build(make)

        def check(ends: Candidates) -> list[Agreement]:
            return [each.compare(ends, engine.info.score_error) for each in self._expected.values()]

        def prove() -> Candidates:
            return engine.prove(self._candidates).candidates

        watch.found.compile_seconds = 0.0
        with self._phase(self._rivals.engine, self._num_calls) as progress:
            watch.time_warm_up(prove, check, progress)
            if not watch.found.agreements:
                return watch.close(State.UNDECIDED, "there is nothing to compare it with")
            self._time_steady(watch, prove, check, memory, progress)
        watch.found.unmeasured["launches"] = "a foreign engine is not profiled"
        return watch.close(State.TIMED)

    def _measure_mode(self, watch: Stopwatch) -> Measurement:
        found, mode = watch.found, watch.found.name
        forget(self._device)
        memory = MemoryGauge(self._device)
        watch.wait = partial(wait_for, self._device)

        def prove(progress: Progress = no_progress) -> Candidates:
            return prove_candidates(engine, self._candidates, progress)[0]

        def check(ends: Candidates) -> list[Agreement]:
            error = engine.info.score_error
            compared = [each.compare(ends, error) for each in self._expected.values() if each.against != mode]
            if mode == EAGER and EAGER not in self._expected:
                self._expected[EAGER] = self._expect(ends, error)
            return compared

        with self._phase(mode, self._num_calls) as progress:
            engine = watch.time_build(lambda: self._build(mode, self._layout))
            watch.time_warm_up(prove, check, progress)
            if not found.agreements:
                return watch.close(State.UNDECIDED, "there is nothing to compare it with")
            found.compile_seconds, found.cache = read_compiled()
            self._time_steady(watch, prove, check, memory, progress)
            if mode == EAGER:
                found.compile_seconds = 0.0
            elif found.compile_seconds is None and found.build_seconds is not None:
                # Torch does not compile this mode: the start takes so much longer than steady calls.
                steady = summarize(found.samples).median
                warm_up = (found.first_seconds or 0.0) + (found.second_seconds or 0.0)
                found.compile_seconds = max(0.0, found.build_seconds + warm_up - WARM_UP * steady)
            # Progress is called once for each tick, or for each replay but the first of a pool.
            calls: list[int] = []
            prove(calls.append)
            if mode == NATIVE:
                found.unmeasured["ticks"] = "the native evaluator has none"
            elif hasattr(engine, "evaluate"):
                num_replays = len(calls) + -(-self._num // self._layout.pool)
                is_captured = captures_graphs(mode, self._device)
                found.ticks = num_replays * TICKS_PER_REPLAY if is_captured else len(calls)
            else:
                found.unmeasured["ticks"] = "a fault wraps the engine"
            measure_launches(watch, prove, self._device)
        return watch.close(State.TIMED)

    def _expect_eager(self) -> None:
        """Prove in eager to compare with it, where it is not measured itself."""
        with self._phase("eager, to compare with", 1) as progress:
            engine = self._build(EAGER, self._layout)
            ends = prove_candidates(engine, self._candidates)[0]
            self._expected[EAGER] = self._expect(ends, engine.info.score_error)
            progress(1)

    def _expect(self, ends: Candidates, score_error: float) -> Expectation:
        # Built again only if needed: nearly always all agree, and its memory can be saved.
        def prove(some: CandidateSet) -> Any:
            return self._build(EAGER, self._layout).prove(some)

        rows, most = np.arange(self._num), self._run.limits.max_depth
        return Expectation(EAGER, prove, score_error, rows, ends, most, self._name_candidate)

    @property
    def _num_calls(self) -> int:
        return WARM_UP + self._plan.repeats

    def _time_steady(self, watch: Stopwatch, prove: Any, check: Check, memory: MemoryGauge, progress: Progress) -> None:
        memory.restart()
        repeats, seconds = self._plan.repeats, self._plan.size.seconds
        watch.time_steady(prove, check, repeats=repeats, seconds=seconds, progress=progress)
        memory.read(watch)

    def _name_candidate(self, row: int) -> str:
        names = self._run.graph.program.symbols
        predicate, first, second = self._candidates.atom[row].tolist()
        return f"{names.predicates[predicate]}({names.constants[first]}, {names.constants[second]})"


def measure_launches(watch: Stopwatch, call: Callable[[], Any], device: torch.device) -> None:
    """Measure launches and device time of one further call, under the profiler."""
    if device.type != "cuda":
        watch.found.unmeasured["launches"] = "there are no kernel launches on a CPU"
        return
    try:
        num_operations, seconds = profile_device(call)
    except RuntimeError as error:
        watch.found.unmeasured["launches"] = describe_failure(error)
        return
    if num_operations:
        watch.found.launches, watch.found.device_seconds = num_operations, seconds
    else:
        watch.found.unmeasured["launches"] = "the profiler saw no kernel"
