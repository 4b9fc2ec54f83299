"""Ticks composed of any stages: eager, or through `torch.compile`."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import Tensor

from kgverify.engines.protocol import StepDigests
from kgverify.errors import InternalError, UserError
from kgverify.prover.execution.compilation import captures_graphs, compile_function
from kgverify.prover.execution.device import PendingCopy
from kgverify.prover.program.tables import Tables
from kgverify.prover.stages.choose import Parameters
from kgverify.prover.state import OPEN, Derivations, Pool, StepRecord, TickGaps, Work
from kgverify.prover.tick.step_record import Chunk, TakenSteps, read_steps, take_steps
from kgverify.prover.tick.tick import Setting, TickLoop, copy_buffers_, restart_, tick

_READ_AT_ONCE: Final = 4096
"""The least number of steps copied to the host together: each copy costs the same, however few they are."""


def build_recorded_tick(setting: Setting) -> Callable[..., tuple[Derivations, Work, StepRecord]]:
    """Return a tick, without recycling, that returns a record of its steps; its arguments are those of `tick`."""

    def run_tick(*state: Any) -> tuple[Derivations, Work, StepRecord]:
        return tick(setting, *state)

    return run_tick


def build_unrecorded_tick(setting: Setting) -> Callable[..., tuple[Derivations, Work, Pool, Tensor, TickGaps]]:
    """Return recycling and a tick in one, without a record: only the number of open slots and the gaps of its choices."""

    def run_unrecorded(
        tables: Tables, parameters: Parameters, derivations: Derivations, work: Work, pool: Pool
    ) -> tuple[Derivations, Work, Pool, Tensor, TickGaps]:
        pool, derivations = setting.stages.recycle(pool, derivations)
        num_open = (derivations.outcome == OPEN).sum()
        derivations, work, record = tick(setting, tables, parameters, derivations, work)
        return derivations, work, pool, num_open, record.gaps or empty_gaps(num_open.device)

    return run_unrecorded


class StageTicks:
    """The ticks of a setting. mode: a mode of `torch.compile`, or eager."""

    def __init__(
        self,
        setting: Setting,
        tables: Tables,
        parameters: Parameters,
        buffers: tuple[Derivations, Work, Pool],
        mode: str,
    ) -> None:
        self._derivations, self._work, self._pool = buffers
        self._tables, self._parameters = tables, parameters
        device = tables.facts.device
        self._is_cuda = device.type == "cuda"
        self._marks_replays = self._is_cuda and mode != "eager"
        self._num_open = torch.zeros((), dtype=torch.int64, device=device)
        self._gaps = empty_gaps(device)
        if mode != "eager":
            for buffer in (*self._derivations, *self._work, *self._pool, *tables, *parameters):
                torch._dynamo.mark_static_address(buffer)

        self._run_tick = compile_function(build_recorded_tick(setting), mode)
        # The loop captures its own graphs.
        self._run_unrecorded = compile_function(
            build_unrecorded_tick(setting), "default" if captures_graphs(mode, device) else mode
        )
        recycle = setting.stages.recycle
        self._recycle = compile_function(recycle, mode) if self._is_cuda else recycle
        is_captured = captures_graphs(mode, device)
        self._loop = TickLoop(self._restart_, self._take_tick_, self._look, self._pool, is_captured=is_captured)

    def resume(self) -> None:
        """Do nothing: the whole state of the derivations is in the buffers."""

    def _restart_(self) -> None:
        restart_(self._derivations, self._work, self._pool)

    def record_tick(self) -> Chunk | None:
        """Run one tick without recycling; return the steps it took, if any."""
        taken = self._take_recorded_tick_()
        return read_steps([taken]) if len(taken.steps.pool_index) else None

    def _take_recorded_tick_(self) -> TakenSteps:
        self._begin_replay()
        derivations, work, record = self._run_tick(self._tables, self._parameters, self._derivations, self._work)
        taken = take_steps(record)
        copy_buffers_(self._derivations, derivations)
        copy_buffers_(self._work, work)
        return taken

    def record_all(
        self, *, has_atoms: bool = True, has_digests: bool = False
    ) -> Iterator[tuple[int, PendingCopy[Chunk] | None]]:
        """Run the candidates of the pool to their ends, recording the steps, each candidate's in order.

        Yields from time to time the number of candidates that have ended, and copies of steps, always with their atoms.
        UserError where digests are requested.
        """
        self._check(has_digests=has_digests)
        num_ended = num_waiting = 0
        tried = -1
        waiting: list[TakenSteps] = []
        self._restart_()
        self._recycle_()
        is_open = bool((self._derivations.outcome == OPEN).any())
        while is_open:
            waiting.append(self._take_recorded_tick_())
            num_taken = len(waiting[-1].steps.pool_index)
            num_waiting += num_taken
            # Nothing but the cursors can change in a tick without a step.
            before, tried = tried, -1 if num_taken else int(self._work.cursor.sum())
            if tried >= 0 and tried == before:
                raise InternalError("the evaluator's ticks do not complete a step")
            self._recycle_()
            is_open = bool((self._derivations.outcome == OPEN).any())
            if num_waiting >= _READ_AT_ONCE or not is_open:
                chunk = read_steps(waiting)
                num_ended += int((chunk.steps.outcome != OPEN).sum())
                yield num_ended, PendingCopy(chunk)
                waiting, num_waiting = [], 0

    def run(self, *, has_digests: bool = False) -> Iterator[int]:
        """Run the candidates of the pool to their ends; yield from time to time the number given to slots.

        UserError where digests are requested.
        """
        self._check(has_digests=has_digests)
        return self._loop.run()

    def _check(self, *, has_digests: bool) -> None:
        if has_digests:
            raise UserError(
                "only mode `fused` takes digests of steps",
                where="mode",
                fix="use --mode fused, or record the steps",
            )

    def send_digests(self, num: int, num_steps: int | None = None) -> PendingCopy[StepDigests]:
        """Raise InternalError: digests are not taken here."""
        raise InternalError("ticks of stages take no digests")

    def _recycle_(self) -> None:
        self._begin_replay()
        pool, derivations = self._recycle(self._pool, self._derivations)
        copy_buffers_(self._pool, pool)
        copy_buffers_(self._derivations, derivations)

    def _take_tick_(self) -> None:
        derivations, work, pool, num_open, gaps = self._run_unrecorded(
            self._tables, self._parameters, self._derivations, self._work, self._pool
        )
        copy_buffers_(self._derivations, derivations)
        copy_buffers_(self._work, work)
        copy_buffers_(self._pool, pool)
        self._num_open.copy_(num_open)
        self._gaps.num_choices.add_(gaps.num_choices)
        self._gaps.num_rescored.add_(gaps.num_rescored)
        torch.minimum(self._gaps.smallest, gaps.smallest, out=self._gaps.smallest)

    def _look(self) -> Tensor:
        return torch.stack((self._num_open, self._pool.next_index))

    def read_gaps(self) -> tuple[int, int, float]:
        """Return the number of choices, the number made again, and the smallest gap, since `clear_gaps`."""
        return int(self._gaps.num_choices), int(self._gaps.num_rescored), float(self._gaps.smallest)

    def clear_gaps(self) -> None:
        """Reset the counts of choices."""
        copy_buffers_(self._gaps, empty_gaps(self._num_open.device))

    def _begin_replay(self) -> None:
        """Allow the outputs of the last captured graph to be overwritten."""
        if self._marks_replays:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]


def empty_gaps(device: torch.device) -> TickGaps:
    """Return the gaps of no choice."""
    return TickGaps(
        torch.zeros((), dtype=torch.int64, device=device),
        torch.zeros((), dtype=torch.int64, device=device),
        torch.full((), torch.inf, device=device),
    )
