"""Ticks one after the other, in buffers at fixed addresses, without a look from the host in between."""

from collections.abc import Callable, Iterator
from typing import Final, Protocol

import torch
from torch import Tensor

from kgverify.engines.compiled.execution.host_copy import Sent
from kgverify.engines.compiled.state import Derivations, Gaps, Pool, Work
from kgverify.engines.compiled.tick.step_record import Chunk, StepDigests

TICKS_PER_REPLAY: Final = 4
"""Ticks of a captured graph: so many at most are run in vain at the end of a pool."""


class Ticks(Protocol):
    """What moves all slots on, in the engine's buffers."""

    def begin(self) -> None:
        """Take up what has been put into the buffers."""
        ...

    def record_tick(self) -> Chunk | None:
        """One tick without recycling, and the steps it took, if any."""
        ...

    def record_all(
        self, *, has_atoms: bool = True, has_digests: bool = False
    ) -> Iterator[tuple[int, Sent[Chunk] | None]]:
        """Run the candidates of the pool to their ends; the steps, each candidate's in their order.

        Now and then: how many candidates have been given to slots, and steps on their way to the host, if any.
        has_atoms:   with the atoms of goals and resolvents
        has_digests: so that `send_digests` has them; UserError where they cannot be had
        """
        ...

    def run(self, *, has_digests: bool = False) -> Iterator[int]:
        """Run the candidates of the pool to their ends; now and then, how many have been given to slots.

        UserError where digests are asked for and cannot be had.
        """
        ...

    def send_digests(self, num: int) -> Sent[StepDigests]:
        """The digests of the first candidates of the pool, which has run with digests, on their way to the host."""
        ...

    def clear_gaps(self) -> None:
        """Count choices anew."""
        ...

    def take_gaps(self) -> tuple[int, int, float]:
        """Choices, how many of them were made again, and the smallest gap, since this was asked last."""
        ...


class TickLoop:
    """Runs the candidates of a pool to their ends.

    take_tick_:  a tick and recycling
    look:        int64 [2]: whether all candidates of the pool have ended, and how many were given to slots
    is_captured: whether several ticks are one graph of CUDA
    """

    def __init__(
        self, take_tick_: Callable[[], None], look: Callable[[], Tensor], pool: Pool, *, is_captured: bool
    ) -> None:
        self._take_tick_, self._look, self._pool, self._is_captured = take_tick_, look, pool, is_captured
        self._graph: torch.cuda.CUDAGraph | None = None

    def run(self) -> Iterator[int]:
        """Take all steps of the candidates in the pool; yields, now and then, how many have been given to slots."""
        if self._is_captured:
            yield from self._replay()
            return
        while True:
            self._take_tick_()
            has_ended, num_given = self._look().tolist()
            if has_ended:
                return
            yield num_given

    def _replay(self) -> Iterator[int]:
        """Each look at the device is at what the replay before the last one left, so that the device need not wait."""
        graph = self._graph or self._capture()
        seen = [torch.zeros(2, dtype=torch.int64, pin_memory=True) for _ in range(2)]
        events = [torch.cuda.Event() for _ in range(2)]  # type: ignore[no-untyped-call]
        turn = 0
        while True:
            graph.replay()
            seen[turn % 2].copy_(self._look(), non_blocking=True)
            events[turn % 2].record()
            turn += 1
            if turn < 2:
                continue
            events[turn % 2].synchronize()
            has_ended, num_given = seen[turn % 2].tolist()
            if has_ended:
                torch.cuda.current_stream().synchronize()
                return
            yield num_given

    def _capture(self) -> torch.cuda.CUDAGraph:
        """Capture some ticks; in warming up and in capture they are run, or not, on an empty pool, where they do nothing."""
        pool = self._pool
        size, place = pool.size.clone(), pool.next_place.clone()
        pool.size.zero_()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._take_tick_()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(TICKS_PER_REPLAY):
                self._take_tick_()
        pool.size.copy_(size)
        pool.next_place.copy_(place)
        # Only now: a capture that failed, for want of memory, is tried anew.
        self._graph = graph
        return graph


def copy_buffers_(buffers: Derivations | Work | Pool | Gaps, values: Derivations | Work | Pool | Gaps) -> None:
    """Copy values into buffers, in place; eager, outside of every compiled graph."""
    for buffer, value in zip(buffers, values, strict=True):
        if buffer is not value:
            buffer.copy_(value)
