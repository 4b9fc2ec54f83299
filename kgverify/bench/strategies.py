"""The ways to compile a search, each measured: what compiling takes, what a search takes, and whether it ends as eager does."""

import math
from collections.abc import Callable
from typing import Final

import numpy as np
import torch
from torch import Tensor

from kgverify.bench.agreement import EXACT
from kgverify.bench.calls import WARM_UP, Differs, Sheet, time_build, time_steady, time_warm_up
from kgverify.bench.gauge import MemoryGauge, forget, read_compiled, read_environment, wait_for, with_caches
from kgverify.bench.modes import EAGER, Plan, choose_bench_layout, note_launches
from kgverify.bench.result import Agreement, BenchResult, Measurement, State
from kgverify.bench.search import Compile, Search, SearchState, Strategy, list_strategies, take_eagerly
from kgverify.bench.work import describe_error, describe_work
from kgverify.engines.compiled.execution.compilation import compile_function, has_cpp_compiler
from kgverify.engines.compiled.execution.device import on_device, resolve_device
from kgverify.engines.compiled.program.tables import build_tables
from kgverify.engines.compiled.stages.choose import SCORES, build_parameters, score_two_tower
from kgverify.engines.compiled.stages.stage_functions import Stages, build_stages
from kgverify.engines.compiled.state import GOAL, Choices, Derivations, Pool, Work
from kgverify.engines.compiled.tick.slots import empty_derivations, empty_pool, empty_work
from kgverify.engines.compiled.tick.tick import Setting
from kgverify.engines.compiled.tower.precision import estimate_score_error
from kgverify.engines.policy import check_policy
from kgverify.errors import UserError, suggest
from kgverify.ranking.corrupt import draw_candidates
from kgverify.runs.progress import Phase, silent_phase
from kgverify.runs.run import Run

STEPS: Final = 20
"""Ticks of a search, as many as a derivation has steps by default."""


def measure_strategies(
    run: Run,
    plan: Plan,
    *,
    steps: int = STEPS,
    names: tuple[str, ...] | None = None,
    stages: Stages | None = None,
    compile_function: Compile = compile_function,
    phase: Phase = silent_phase,
) -> BenchResult:
    """Measure every strategy on the evaluator's own tick, each with empty caches; the ends are compared with eager's.

    names:  of strategies, instead of all
    stages: instead of the evaluator's own
    What torch cannot compile is in the result with what torch says. Ctrl-C ends it early, as of `measure_modes`.
    UserError for an unknown strategy or device, and where there is nothing to prove.
    """
    if steps < 1:
        raise UserError(f"expected at least 1 tick, found {steps}", where="--steps", fix="give 1 or more")
    device = resolve_device(plan.device)
    strategies = _choose(names, steps)
    check_policy(run.policy, run.graph.program, run.limits)
    with on_device(device, has_products=run.policy.name != "shortest"):
        search, score_error = build_search(run, device, plan.size.slots, steps, stages)
        environment = read_environment(device, is_fresh=True)
        race = _Race(search, score_error, plan, compile_function, phase)
        measurements, is_complete = race.measure(strategies)
    layout = search.setting.layout
    return BenchResult(
        work=describe_work(
            run,
            kind="strategies",
            size=plan.name,
            num_candidates=int(search.state.pool.size),
            slots=layout.slots,
            precision="float32",
            steps=steps,
            faults=plan.faults,
        ),
        environment=environment,
        unit="tick",
        measurements=measurements,
        is_complete=is_complete,
    )


def _choose(names: tuple[str, ...] | None, steps: int) -> dict[str, Strategy]:
    known = list_strategies(steps)
    for name in names or ():
        if name not in known:
            raise UserError(
                f"unknown strategy {name!r}", where="--modes", fix=suggest(name, known) or f"choose {', '.join(known)}"
            )
    return {name: known[name] for name in names or known}


def build_search(
    run: Run, device: torch.device, slots: int, steps: int, stages: Stages | None = None
) -> tuple[Search, float]:
    """A search for the first candidates of a run, from empty slots; and the error of its scores, nats."""
    candidates = draw_candidates(run.graph, run.split, run.queries, run.num_corruptions, run.seed)
    num = len(candidates.query)
    if not num:
        raise UserError("there is nothing to prove", where=run.graph.name, fix="choose another split")
    layout = choose_bench_layout(run, device, slots, num)
    num = min(num, layout.pool)
    parameters = build_parameters(run.policy, device, torch.float32, is_rounded=True)
    pool = empty_pool(layout, device)
    pool.query[:num] = torch.as_tensor(np.array(candidates.atom[:num], np.int32, order="C"), device=device)
    pool.size.fill_(num)
    state = SearchState(empty_derivations(layout, run.limits.max_depth, device), empty_work(layout, device), pool)
    stages = build_stages(SCORES[run.policy.name]) if stages is None else stages
    tables = build_tables(run.graph.program, layout.atoms, device, is_rounded=True)
    error = estimate_score_error(run.policy, run.limits.max_atoms, device, score_two_tower, parameters)
    return Search(Setting(stages, run.limits, layout), tables, parameters, state, steps), error


def compare_states(expected: SearchState, actual: SearchState, tolerance: float) -> Agreement:
    """Number by number; those of log-probabilities within a tolerance, in nats. What is unspecified is left out."""
    num_compared = num_differing = 0
    largest, example = 0.0, ""
    for before, after in zip(_settle(expected), _settle(actual), strict=True):
        for name, wanted, found in zip(before._fields, before, after, strict=True):
            differs = wanted != found
            if wanted.is_floating_point():
                gap = (wanted - found).abs()
                differs &= ~(gap <= tolerance)
                largest = max(largest, float(gap[~differs].nan_to_num().max()) if (~differs).any() else 0.0)
            num_compared += wanted.numel()
            num = int(differs.sum())
            num_differing += num
            if num and not example:
                where = tuple(int(i) for i in torch.nonzero(differs)[0])
                place = f"{type(before).__name__.lower()}.{name}{list(where) if where else ''}"
                example = f"{place}: {EAGER} {wanted[where].item()}; here {found[where].item()}"
    return Agreement(
        against=EAGER,
        num_compared=num_compared,
        num_differing=num_differing,
        largest_gap=largest,
        example=example,
    )


def find_smallest_gap(search: Search) -> float:
    """Between the two highest scores of any goal on the way, taken eagerly, in nats; inf where there is no choice."""
    smallest = math.inf
    choose = search.setting.stages.choose

    def watched(kind: Tensor, num_resolvents: Tensor, score: Tensor) -> Choices:
        nonlocal smallest
        rows = score[(kind == GOAL) & (num_resolvents > 1)]
        if rows.shape[0] and rows.shape[1] > 1:
            best = rows.topk(2).values
            gaps = (best[:, 0] - best[:, 1])[best.isfinite().all(1)]
            smallest = min(smallest, float(gaps.min()) if len(gaps) else math.inf)
        return choose(kind, num_resolvents, score)

    stages = search.setting.stages._replace(choose=watched)
    take_eagerly(search._replace(setting=search.setting._replace(stages=stages)), compile_function)()
    return smallest


def _settle(state: SearchState) -> tuple[Derivations | Work | Pool, ...]:
    """On the host, the free rows of resolvents' origins, which are unspecified, cleared."""
    derivations = Derivations(*(leaf.cpu() for leaf in state.derivations))
    work = Work(*(leaf.cpu() for leaf in state.work))
    is_kept = torch.arange(work.origin.shape[1]) < work.num_kept[:, None]
    kinds, origins = (torch.where(is_kept, leaf, 0) for leaf in (work.origin_kind, work.origin))
    return derivations, work._replace(origin_kind=kinds, origin=origins), Pool(*(leaf.cpu() for leaf in state.pool))


class _Race:
    """The strategies one after the other."""

    def __init__(self, search: Search, score_error: float, plan: Plan, compile_function: Compile, phase: Phase) -> None:
        self._search, self._score_error, self._plan = search, score_error, plan
        self._compile, self._phase = compile_function, phase
        self._device = search.tables.facts.device
        self._tolerance = search.steps * (2 * score_error + EXACT)

    def measure(self, strategies: dict[str, Strategy]) -> tuple[tuple[Measurement, ...], bool]:
        """Each, and whether it came to its end."""
        done: list[Measurement] = []
        try:
            with self._phase("eager, to compare with", 1):
                self._expected = take_eagerly(self._search, self._compile)()
        except KeyboardInterrupt:
            return self._give_up(strategies, done), False
        for name, strategy in strategies.items():
            sheet = Sheet(name, self._search.steps)
            try:
                done.append(self._measure(sheet, strategy))
            except KeyboardInterrupt:
                done.append(sheet.close(State.INTERRUPTED, "interrupted"))
                return self._give_up(strategies, done), False
        return tuple(done), True

    def _give_up(self, strategies: dict[str, Strategy], done: list[Measurement]) -> tuple[Measurement, ...]:
        reason = "the benchmark was interrupted before it"
        left = list(strategies)[len(done) :]
        return *done, *(Measurement(name=name, state=State.ABSENT, reason=reason) for name in left)

    def _measure(self, sheet: Sheet, strategy: Strategy) -> Measurement:
        if sheet.name != EAGER and self._device.type == "cpu" and not has_cpp_compiler():
            return sheet.close(State.ABSENT, "it needs a C++ compiler and none is on the PATH")
        try:
            with with_caches(sheet.name != EAGER):
                return self._time(sheet, strategy)
        except Differs as differs:
            if self._score_error and find_smallest_gap(self._search) <= 2 * self._score_error:
                return sheet.close(State.UNDECIDED, f"{differs}, where two scores are closer than their error")
            return sheet.close(State.WRONG, str(differs))
        except UserError as error:
            return sheet.close(State.ABSENT, error.message)
        except Exception as error:
            return sheet.close(State.ABSENT, f"torch cannot: {describe_error(error)}")

    def _time(self, sheet: Sheet, strategy: Strategy) -> Measurement:
        forget(self._device)
        memory = MemoryGauge(self._device)

        def wait() -> None:
            wait_for(self._device)

        def check(state: SearchState) -> list[Agreement]:
            return [compare_states(self._expected, state, self._tolerance)]

        with self._phase(sheet.name, WARM_UP + self._plan.repeats) as progress:
            take: Callable[[], SearchState] = time_build(sheet, lambda: strategy(self._search, self._compile), wait)
            time_warm_up(sheet, take, check, wait, progress)
            sheet.compile_seconds, sheet.cache = read_compiled()
            if sheet.name == EAGER:
                sheet.compile_seconds = 0.0
            memory.restart()
            seconds = self._plan.size.seconds
            time_steady(sheet, take, check, wait, repeats=self._plan.repeats, seconds=seconds, progress=progress)
            sheet.ticks = self._search.steps
            sheet.peak_bytes, reason = memory.read()
            if reason:
                sheet.unmeasured["memory"] = reason
            note_launches(sheet, take, self._device)
        return sheet.close(State.TIMED)
