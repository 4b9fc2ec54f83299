"""Strategies to compile a search of some ticks: each takes all slots from one state to the same end state."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import Tensor

from kgverify.errors import UserError
from kgverify.prover.program.tables import Tables
from kgverify.prover.stages.choose import Parameters
from kgverify.prover.stages.stage_functions import Stages
from kgverify.prover.state import Derivations, Pool, Work
from kgverify.prover.tick.stage_ticks import build_unrecorded_tick
from kgverify.prover.tick.tick import Setting
from kgverify.prover.tick.tick_loop import TICKS_PER_REPLAY, copy_buffers_

Compile: TypeAlias = Callable[[Any, str], Any]
"""(function, mode of `torch.compile`) -> the function compiled."""


class SearchState(NamedTuple):
    """All slots, the current step of each, and the pool."""

    derivations: Derivations
    work: Work
    pool: Pool


class Search(NamedTuple):
    """A search of `steps` ticks that begins at `state`."""

    setting: Setting
    tables: Tables
    parameters: Parameters
    state: SearchState
    steps: int


Strategy: TypeAlias = Callable[[Search, Compile], Callable[[], SearchState]]
"""Makes a function that takes the ticks of a search, from its state, at every call, and changes none of its arguments."""


def take_eagerly(search: Search, compile_function: Compile) -> Callable[[], SearchState]:
    """Take the ticks without the compiler; the other strategies are compared with this one."""
    return _repeat(search, build_unrecorded_tick(search.setting))


def compile_tick(search: Search, compile_function: Compile) -> Callable[[], SearchState]:
    """Compile one tick, which a Python loop calls."""
    return _repeat(search, compile_function(build_unrecorded_tick(search.setting), "default"))


def compile_stages(search: Search, compile_function: Compile) -> Callable[[], SearchState]:
    """Compile every stage by itself, and compose them in Python."""
    stages = Stages(*(compile_function(stage, "default") for stage in search.setting.stages))
    return _repeat(search, build_unrecorded_tick(search.setting._replace(stages=stages)))


def unroll(search: Search, compile_function: Compile) -> Callable[[], SearchState]:
    """Compile all ticks in one graph."""
    take_tick, steps = build_unrecorded_tick(search.setting), search.steps

    def take_ticks(
        tables: Tables, parameters: Parameters, derivations: Derivations, work: Work, pool: Pool
    ) -> SearchState:
        for _ in range(steps):
            derivations, work, pool, *_ = take_tick(tables, parameters, derivations, work, pool)
        return SearchState(derivations, work, pool)

    compiled = compile_function(take_ticks, "default")

    def take() -> SearchState:
        state: SearchState = compiled(search.tables, search.parameters, *search.state)
        return state

    return take


def loop_inside(search: Search, compile_function: Compile) -> Callable[[], SearchState]:
    """Compile torch's `while_loop` over the tick, in one graph."""
    from torch._higher_order_ops import while_loop

    take_tick, steps = build_unrecorded_tick(search.setting), search.steps
    given = _flatten(search.state)
    after = _flatten(SearchState(*take_tick(search.tables, search.parameters, *search.state)[:3]))
    # A leaf that a tick leaves unchanged must not be carried: `while_loop` refuses an output that is one of its inputs.
    is_carried = [new is not old for new, old in zip(after, given, strict=True)]

    def take_ticks(tables: Tables, parameters: Parameters, leaves: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        def has_more(tick: Tensor, *carried: Tensor) -> Tensor:
            return tick < steps

        def take_one(tick: Tensor, *carried: Tensor) -> tuple[Tensor, ...]:
            rest = iter(carried)
            state = _unflatten(
                tuple(next(rest) if moves else leaf for leaf, moves in zip(leaves, is_carried, strict=True))
            )
            ended = _flatten(SearchState(*take_tick(tables, parameters, *state)[:3]))
            return tick + 1, *(leaf for leaf, moves in zip(ended, is_carried, strict=True) if moves)

        start = torch.zeros((), dtype=torch.int64, device=leaves[0].device)
        carried = tuple(leaf for leaf, moves in zip(leaves, is_carried, strict=True) if moves)
        ended: tuple[Tensor, ...] = while_loop(has_more, take_one, (start, *carried))  # type: ignore[no-untyped-call]
        return ended[1:]

    compiled = compile_function(take_ticks, "default")

    def take() -> SearchState:
        rest = iter(compiled(search.tables, search.parameters, given))
        return _unflatten(tuple(next(rest) if moves else leaf for leaf, moves in zip(given, is_carried, strict=True)))

    return take


def capture(search: Search, compile_function: Compile, num_captured: int) -> Callable[[], SearchState]:
    """Compile one tick, and capture several of them in a CUDA graph; a Python loop calls the remaining ones.

    UserError without CUDA, or where there are fewer ticks.
    """
    device = search.tables.facts.device
    if device.type != "cuda":
        raise UserError("it needs a CUDA device: there are no graphs to capture on a CPU", where="--device")
    if search.steps < num_captured:
        raise UserError(f"there are only {search.steps} ticks to take", where="--steps")
    compiled = compile_function(build_unrecorded_tick(search.setting), "default")
    buffers = _unflatten(tuple(leaf.clone() for leaf in _flatten(search.state)))
    graph: torch.cuda.CUDAGraph | None = None

    def take_tick_() -> None:
        copy_state_(buffers, SearchState(*compiled(search.tables, search.parameters, *buffers)[:3]))

    def capture_() -> torch.cuda.CUDAGraph:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                take_tick_()
        torch.cuda.current_stream().wait_stream(stream)
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            for _ in range(num_captured):
                take_tick_()
        return captured

    def take() -> SearchState:
        nonlocal graph
        if graph is None:
            graph = capture_()
        copy_state_(buffers, search.state)
        for _ in range(search.steps // num_captured):
            graph.replay()
        for _ in range(search.steps % num_captured):
            take_tick_()
        return buffers

    return take


def copy_state_(buffers: SearchState, state: SearchState) -> None:
    """Copy a state into buffers, in place."""
    copy_buffers_(buffers.derivations, state.derivations)
    copy_buffers_(buffers.work, state.work)
    copy_buffers_(buffers.pool, state.pool)


def list_strategies(steps: int) -> dict[str, Strategy]:
    """Return every strategy by its name."""
    lengths = sorted({TICKS_PER_REPLAY, max(steps, TICKS_PER_REPLAY)})

    def captured(num: int) -> Strategy:
        return lambda search, compile_function: capture(search, compile_function, num)

    return {**_STRATEGIES, **{f"captured-{num}": captured(num) for num in lengths}}


_STRATEGIES: Final[dict[str, Strategy]] = {
    "eager": take_eagerly,
    "loop": compile_tick,
    "regional": compile_stages,
    "while_loop": loop_inside,
    "unrolled": unroll,
}


def _repeat(search: Search, take_tick: Callable[..., Any]) -> Callable[[], SearchState]:
    def take() -> SearchState:
        state = search.state
        for _ in range(search.steps):
            state = SearchState(*take_tick(search.tables, search.parameters, *state)[:3])
        return state

    return take


def _flatten(state: SearchState) -> tuple[Tensor, ...]:
    return (*state.derivations, *state.work, *state.pool)


def _unflatten(leaves: tuple[Tensor, ...]) -> SearchState:
    of_derivations, of_work = len(Derivations._fields), len(Work._fields)
    return SearchState(
        Derivations(*leaves[:of_derivations]),
        Work(*leaves[of_derivations : of_derivations + of_work]),
        Pool(*leaves[of_derivations + of_work :]),
    )
