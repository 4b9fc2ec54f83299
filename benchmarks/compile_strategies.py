"""The strategies to compile a search, measured: the time to compile, the time of a search, and agreement with eager.

python benchmarks/compile_strategies.py --queries 3 --corruptions 5 --slots 16 --steps 20
"""

import argparse
import math
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Final

import numpy as np
import torch
from search_strategies import Compile, Search, SearchState, Strategy, list_strategies, take_eagerly
from torch import Tensor

from kgverify.bench.agreement import EXACT
from kgverify.bench.modes import EAGER, choose_bench_layout, measure_launches
from kgverify.bench.plan import Plan, describe_work, find_size
from kgverify.bench.result import Agreement, BenchResult, Measurement, State, encode_result, read_environment
from kgverify.bench.table import render_result
from kgverify.bench.timing import (
    WARM_UP,
    MemoryGauge,
    Stopwatch,
    WrongResult,
    describe_failure,
    forget,
    read_compiled,
    wait_for,
)
from kgverify.engines.policy import check_policy
from kgverify.errors import UserError, suggest
from kgverify.graphs.load import load_graph
from kgverify.program.limits import Limits
from kgverify.progress import Phase, silent_phase
from kgverify.prover.execution.caches import fresh_caches
from kgverify.prover.execution.compilation import compile_function, has_cpp_compiler
from kgverify.prover.execution.device import on_device, resolve_device
from kgverify.prover.program.tables import build_tables
from kgverify.prover.stages.choose import SCORES, build_parameters, score_two_tower
from kgverify.prover.stages.stage_functions import Stages, build_stages
from kgverify.prover.state import GOAL, Choices, Derivations, Pool, Work
from kgverify.prover.tick.slots import empty_derivations, empty_pool, empty_work
from kgverify.prover.tick.tick import Setting
from kgverify.prover.tower.precision import estimate_score_error
from kgverify.ranking.corrupt import draw_candidates
from kgverify.runs.run import Run, load_policy

STEPS: Final = 20
"""Ticks of a search, the default limit on the steps of a derivation."""


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

    names:  of strategies; all if not given
    stages: replace the evaluator's own
    A strategy that torch cannot compile is in the result with torch's message. Ctrl-C ends it early, as in `measure_modes`.
    UserError for an unknown strategy or device, and where there is nothing to prove.
    """
    if steps < 1:
        raise UserError(f"expected at least 1 tick, found {steps}", where="--steps", fix="give 1 or more")
    device = resolve_device(plan.device)
    strategies = _choose(names, steps)
    check_policy(run.policy, run.graph.program, run.limits)
    with warnings.catch_warnings(), on_device(device, has_products=run.policy.name != "shortest"):
        # Even where warnings are errors, those of torch do not make a strategy unavailable.
        warnings.simplefilter("ignore")
        search, score_error = build_search(run, device, plan.size.slots, steps, stages)
        environment = read_environment(device.type, has_fresh_cache=True)
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
                f"unknown strategy {name!r}",
                where="--strategy",
                fix=suggest(name, known) or f"choose {', '.join(known)}",
            )
    return {name: known[name] for name in names or known}


def build_search(
    run: Run, device: torch.device, slots: int, steps: int, stages: Stages | None = None
) -> tuple[Search, float]:
    """Build a search for the first candidates of a run, from empty slots; return it with the error of its scores, nats."""
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
    """Compare states number by number, log-probabilities with a tolerance in nats, without unspecified numbers."""
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
                where_in = f"{type(before).__name__.lower()}.{name}{list(where) if where else ''}"
                example = f"{where_in}: {EAGER} {wanted[where].item()}; here {found[where].item()}"
    return Agreement(
        against=EAGER,
        num_compared=num_compared,
        num_differing=num_differing,
        largest_gap=largest,
        example=example,
    )


def find_smallest_gap(search: Search) -> float:
    """Return the smallest gap between the two highest scores of any goal, in nats; inf where there is no choice."""
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
    """Copy a state to the host, and clear the free rows of resolvents' origins, which are unspecified."""
    derivations = Derivations(*(leaf.cpu() for leaf in state.derivations))
    work = Work(*(leaf.cpu() for leaf in state.work))
    is_kept = torch.arange(work.origin.shape[1]) < work.num_kept[:, None]
    kinds, origins = (torch.where(is_kept, leaf, 0) for leaf in (work.origin_kind, work.origin))
    return derivations, work._replace(origin_kind=kinds, origin=origins), Pool(*(leaf.cpu() for leaf in state.pool))


class _Race:
    """The strategies, measured one after the other."""

    def __init__(self, search: Search, score_error: float, plan: Plan, compile_function: Compile, phase: Phase) -> None:
        self._search, self._score_error, self._plan = search, score_error, plan
        self._compile, self._phase = compile_function, phase
        self._device = search.tables.facts.device
        self._tolerance = search.steps * (2 * score_error + EXACT)

    def measure(self, strategies: dict[str, Strategy]) -> tuple[tuple[Measurement, ...], bool]:
        """Measure each; return the measurements and whether they are complete."""
        done: list[Measurement] = []
        try:
            with self._phase("eager, to compare with", 1):
                self._expected = take_eagerly(self._search, self._compile)()
        except KeyboardInterrupt:
            return self._give_up(strategies, done), False
        for name, strategy in strategies.items():
            watch = Stopwatch(name, self._search.steps)
            try:
                done.append(self._measure(watch, strategy))
            except KeyboardInterrupt:
                done.append(watch.close(State.INTERRUPTED, "interrupted"))
                return self._give_up(strategies, done), False
        return tuple(done), True

    def _give_up(self, strategies: dict[str, Strategy], done: list[Measurement]) -> tuple[Measurement, ...]:
        reason = "the benchmark was interrupted before it"
        left = list(strategies)[len(done) :]
        return *done, *(Measurement(name=name, state=State.ABSENT, reason=reason) for name in left)

    def _measure(self, watch: Stopwatch, strategy: Strategy) -> Measurement:
        if watch.found.name != EAGER and self._device.type == "cpu" and not has_cpp_compiler():
            return watch.close(State.ABSENT, "it needs a C++ compiler and none is on the PATH")
        # Errors must not pass through it: torch would keep its folder.
        with fresh_caches() if watch.found.name != EAGER else nullcontext():
            try:
                return self._time(watch, strategy)
            except WrongResult as wrong:
                if self._score_error and find_smallest_gap(self._search) <= 2 * self._score_error:
                    return watch.close(State.UNDECIDED, f"{wrong}, where two scores are closer than their error")
                return watch.close(State.WRONG, str(wrong))
            except UserError as error:
                return watch.close(State.ABSENT, error.message)
            except Exception as error:
                return watch.close(State.ABSENT, f"torch cannot: {describe_failure(error)}")

    def _time(self, watch: Stopwatch, strategy: Strategy) -> Measurement:
        forget(self._device)
        memory = MemoryGauge(self._device)
        watch.wait = partial(wait_for, self._device)

        def check(state: SearchState) -> list[Agreement]:
            return [compare_states(self._expected, state, self._tolerance)]

        with self._phase(watch.found.name, WARM_UP + self._plan.repeats) as progress:
            take: Callable[[], SearchState] = watch.time_build(lambda: strategy(self._search, self._compile))
            watch.time_warm_up(take, check, progress)
            watch.found.compile_seconds, watch.found.cache = read_compiled()
            if watch.found.name == EAGER:
                watch.found.compile_seconds = 0.0
            memory.restart()
            seconds = self._plan.size.seconds
            watch.time_steady(take, check, repeats=self._plan.repeats, seconds=seconds, progress=progress)
            watch.found.ticks = self._search.steps
            memory.read(watch)
            measure_launches(watch, take, self._device)
        return watch.close(State.TIMED)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="countries")
    parser.add_argument("--policy", default="shortest")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--size", default="small", help="small, medium, large or extreme")
    parser.add_argument("--queries", type=int)
    parser.add_argument("--corruptions", type=int)
    parser.add_argument("--slots", type=int)
    parser.add_argument("--max-depth", type=int, default=Limits().max_depth)
    parser.add_argument("--steps", type=int, default=STEPS, help="ticks of the search")
    parser.add_argument("--strategy", action="append", help="only this strategy; repeat for several")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--json", metavar="FILE", help="write the result, as kgverify bench --json does")
    options = parser.parse_args()
    size = find_size(options.size)
    size = size._replace(queries=options.queries or size.queries, slots=options.slots or size.slots)
    graph, limits = load_graph(options.graph), Limits(max_depth=options.max_depth)
    run = Run(
        graph,
        limits,
        load_policy(options.policy, graph, limits, 0),
        num_queries=size.queries,
        num_corruptions=options.corruptions or size.corruptions,
    )
    plan = Plan(options.size, size, device=options.device, repeats=options.repeats)
    names = None if options.strategy is None else tuple(options.strategy)
    try:
        result = measure_strategies(run, plan, steps=options.steps, names=names)
    except UserError as error:
        parser.error(str(error))
    print("\n".join(render_result(result)))
    if options.json is not None:
        with open(options.json, "wb") as file:
            file.write(encode_result(result))
    return 0 if result.is_right else 1


if __name__ == "__main__":
    raise SystemExit(main())
