"""Ticks run one after the other in buffers at fixed addresses, without synchronising with the host in between."""

import gc
from collections.abc import Callable, Iterator
from typing import Final

import torch
from torch import Tensor

from kgverify.engines.compiled.state import Derivations, Pool, TickGaps, Work
from kgverify.garbage_collection import without_garbage_collection

TICKS_PER_REPLAY: Final = 2
"""Ticks of a captured graph. Twice this number at most run in vain at the end of a pool."""


class TickLoop:
    """A loop that runs the candidates of a pool to their ends.

    take_tick_:  runs a tick and recycling
    look:        returns int64 [2]: whether all candidates of the pool have ended, and the number given to slots
    is_captured: whether several ticks are captured in one CUDA graph
    """

    def __init__(
        self, take_tick_: Callable[[], None], look: Callable[[], Tensor], pool: Pool, *, is_captured: bool
    ) -> None:
        self._take_tick_, self._look, self._pool, self._is_captured = take_tick_, look, pool, is_captured
        self._graph: torch.cuda.CUDAGraph | None = None

    def run(self) -> Iterator[int]:
        """Take all steps of the candidates in the pool; yield from time to time the number given to slots."""
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
        """Replay the captured ticks. Each look at the device reads the state before the last replay, so it never waits."""
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
        """Capture some ticks. The pool is empty meanwhile, so that the ticks of warm-up and capture do nothing."""
        pool = self._pool
        size, next_index = pool.size.clone(), pool.next_index.clone()
        pool.size.zero_()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._take_tick_()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Freeing the graph or the memory of another engine would end the capture.
        gc.collect()
        with without_garbage_collection(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            for _ in range(TICKS_PER_REPLAY):
                self._take_tick_()
        pool.size.copy_(size)
        pool.next_index.copy_(next_index)
        # Only now, so that a capture that failed for want of memory is retried.
        self._graph = graph
        return graph


def copy_buffers_(buffers: Derivations | Work | Pool | TickGaps, values: Derivations | Work | Pool | TickGaps) -> None:
    """Copy values into buffers, in place; eagerly, outside of every compiled graph."""
    for buffer, value in zip(buffers, values, strict=True):
        if buffer is not value:
            buffer.copy_(value)
