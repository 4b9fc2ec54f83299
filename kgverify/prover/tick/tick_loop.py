"""Ticks run one after the other in buffers at fixed addresses, without synchronising with the host in between."""

import gc
from collections.abc import Callable, Iterator
from typing import Final

import torch
from torch import Tensor

from kgverify.garbage_collection import without_garbage_collection
from kgverify.prover.state import Derivations, Pool, TickGaps, Work

TICKS_PER_REPLAY: Final = 2
"""Ticks of a captured graph. Twice this number at most run in vain at the end of a pool."""


class TickLoop:
    """A loop that runs the candidates of a pool to their ends.

    restart_:    empties the slots, and begins with the first candidate of the pool
    take_tick_:  runs a tick and recycling
    look:        returns int64 [2]: a number that is 0 once all candidates have ended, and the number given to slots
    is_captured: whether the restart and several ticks are captured in CUDA graphs
    """

    def __init__(
        self,
        restart_: Callable[[], None],
        take_tick_: Callable[[], None],
        look: Callable[[], Tensor],
        pool: Pool,
        *,
        is_captured: bool,
    ) -> None:
        self._restart_, self._take_tick_, self._look, self._pool = restart_, take_tick_, look, pool
        self._is_captured = is_captured
        self._graphs: tuple[torch.cuda.CUDAGraph, torch.cuda.CUDAGraph] | None = None

    def run(self) -> Iterator[int]:
        """Take all steps of the candidates in the pool; yield from time to time the number given to slots."""
        if self._is_captured:
            yield from self._replay()
            return
        self._restart_()
        while True:
            self._take_tick_()
            num_left, num_given = self._look().tolist()
            if num_left == 0:
                return
            yield num_given

    def _replay(self) -> Iterator[int]:
        """Replay the captured ticks. Each look at the device reads the state before the last replay, so it never waits."""
        if self._graphs is None:
            # Only once both are captured, so that a capture that failed for want of memory is retried.
            self._graphs = self._capture()
        restart, ticks = self._graphs
        restart.replay()
        seen = torch.zeros((2, 2), dtype=torch.int64, pin_memory=True)
        events = [torch.cuda.Event() for _ in range(2)]  # type: ignore[no-untyped-call]
        turn = 0
        while True:
            ticks.replay()
            seen[turn % 2].copy_(self._look(), non_blocking=True)
            events[turn % 2].record()
            turn += 1
            if turn < 2:
                continue
            events[turn % 2].synchronize()
            num_left, num_given = seen[turn % 2].tolist()
            if num_left == 0:
                torch.cuda.current_stream().synchronize()
                return
            yield num_given

    def _capture(self) -> tuple[torch.cuda.CUDAGraph, torch.cuda.CUDAGraph]:
        """Capture the restart, and some ticks. The pool is empty meanwhile, so that no candidate is taken up."""
        size = self._pool.size.clone()
        self._pool.size.zero_()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._restart_()
            for _ in range(3):
                self._take_tick_()
        torch.cuda.current_stream().wait_stream(stream)
        restart, ticks = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        # Freeing the graph or the memory of another engine would end the capture.
        gc.collect()
        with without_garbage_collection():
            with torch.cuda.graph(restart, capture_error_mode="thread_local"):
                self._restart_()
            with torch.cuda.graph(ticks, capture_error_mode="thread_local"):
                for _ in range(TICKS_PER_REPLAY):
                    self._take_tick_()
        self._pool.size.copy_(size)
        return restart, ticks


def copy_buffers_(buffers: Derivations | Work | Pool | TickGaps, values: Derivations | Work | Pool | TickGaps) -> None:
    """Copy values into buffers, in place; eagerly, outside of every compiled graph."""
    for buffer, value in zip(buffers, values, strict=True):
        if buffer is not value:
            buffer.copy_(value)
