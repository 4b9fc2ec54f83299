"""Ticks and recycling one after the other, in buffers at fixed addresses, without a look from the host in between."""

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import torch
from torch import Tensor

from kgverify.engines.compiled.choose import Parameters
from kgverify.engines.compiled.compile import compile_function
from kgverify.engines.compiled.state import OPEN, Derivations, Gaps, Pool, Work
from kgverify.engines.compiled.tables import Tables
from kgverify.engines.compiled.tick import Setting, tick

TICKS_PER_REPLAY: Final = 4
"""Ticks of a captured graph: so many at most are run in vain at the end of a pool."""

Buffers: TypeAlias = tuple[Derivations, Work, Pool]
RunTick: TypeAlias = Callable[
    [Tables, Parameters, Derivations, Work, Pool], tuple[Derivations, Work, Pool, Tensor, Gaps]
]


class TickLoop:
    """Runs the candidates of a pool to their ends.

    The buffers are the engine's. mode: as of the engine; where it captures graphs, several ticks are one graph.
    """

    def __init__(self, setting: Setting, tables: Tables, parameters: Parameters, buffers: Buffers, mode: str) -> None:
        self._tables, self._parameters = tables, parameters
        self._derivations, self._work, self._pool = buffers
        device = tables.facts.device
        self._num_open = torch.zeros((), dtype=torch.int64, device=device)
        self._gaps = empty_gaps(device)
        self._is_captured = device.type == "cuda" and mode not in ("eager", "default")
        self._graph: torch.cuda.CUDAGraph | None = None

        def run_tick(
            tables: Tables, parameters: Parameters, derivations: Derivations, work: Work, pool: Pool
        ) -> tuple[Derivations, Work, Pool, Tensor, Gaps]:
            pool, derivations = setting.stages.recycle(pool, derivations)
            num_open = (derivations.outcome == OPEN).sum()
            derivations, work, record = tick(setting, tables, parameters, derivations, work)
            return derivations, work, pool, num_open, record.gaps or empty_gaps(num_open.device)

        self._run_tick: RunTick = compile_function(run_tick, "default" if self._is_captured else mode)

    def run(self) -> Iterator[int]:
        """Take all steps of the candidates in the pool; yields, now and then, how many have been given to slots."""
        if not self._is_captured:
            while True:
                self._take_tick_()
                if not int(self._num_open):
                    return
                yield int(self._pool.next_place)
        yield from self._replay()

    def take_gaps(self) -> tuple[int, int, float]:
        """Choices, how many of them were made again, and the smallest gap, since this was asked last."""
        counts = int(self._gaps.num_choices), int(self._gaps.num_rescored), float(self._gaps.smallest)
        copy_buffers_(self._gaps, empty_gaps(self._num_open.device))
        return counts

    def _replay(self) -> Iterator[int]:
        """Each look at the device is at what the replay before the last one left, so that the device need not wait."""
        graph = self._graph or self._capture()
        seen = [torch.zeros(2, dtype=torch.int64, pin_memory=True) for _ in range(2)]
        events = [torch.cuda.Event() for _ in range(2)]  # type: ignore[no-untyped-call]
        turn = 0
        while True:
            graph.replay()
            seen[turn % 2].copy_(torch.stack((self._num_open, self._pool.next_place)), non_blocking=True)
            events[turn % 2].record()
            turn += 1
            if turn < 2:
                continue
            events[turn % 2].synchronize()
            num_open, num_given = seen[turn % 2].tolist()
            if not num_open:
                torch.cuda.current_stream().synchronize()
                return
            yield num_given

    def _capture(self) -> torch.cuda.CUDAGraph:
        """Capture some ticks; in warming up and in capture they are run, or not, on an empty pool, where they do nothing."""
        size, place = self._pool.size.clone(), self._pool.next_place.clone()
        self._pool.size.zero_()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._take_tick_()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            for _ in range(TICKS_PER_REPLAY):
                self._take_tick_()
        self._pool.size.copy_(size)
        self._pool.next_place.copy_(place)
        return self._graph

    def _take_tick_(self) -> None:
        derivations, work, pool, num_open, gaps = self._run_tick(
            self._tables, self._parameters, self._derivations, self._work, self._pool
        )
        copy_buffers_(self._derivations, derivations)
        copy_buffers_(self._work, work)
        copy_buffers_(self._pool, pool)
        self._num_open.copy_(num_open)
        self._gaps.num_choices.add_(gaps.num_choices)
        self._gaps.num_rescored.add_(gaps.num_rescored)
        torch.minimum(self._gaps.smallest, gaps.smallest, out=self._gaps.smallest)


def empty_gaps(device: torch.device) -> Gaps:
    """Of no choice."""
    return Gaps(
        torch.zeros((), dtype=torch.int64, device=device),
        torch.zeros((), dtype=torch.int64, device=device),
        torch.full((), torch.inf, device=device),
    )


def copy_buffers_(buffers: Derivations | Work | Pool | Gaps, values: Derivations | Work | Pool | Gaps) -> None:
    """Copy values into buffers, in place; eager, outside of every compiled graph."""
    for buffer, value in zip(buffers, values, strict=True):
        if buffer is not value:
            buffer.copy_(value)
