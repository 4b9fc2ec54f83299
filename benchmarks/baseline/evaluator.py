"""The baseline as an evaluator: buffers, captured graphs, and the loop on the host."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from baseline.resolvents import Resolvents, compute_resolvents
from baseline.step import Pool, Slots, recycle, take_step
from baseline.tables import Segments, build_segments
from kgverify.engines.policy import Policy, check_policy
from kgverify.engines.protocol import Results
from kgverify.program.limits import Limits
from kgverify.program.program import Program
from kgverify.prover.execution.compilation import compile_function, resolve_mode
from kgverify.prover.execution.device import resolve_device
from kgverify.prover.stages.choose import Parameters, build_parameters
from kgverify.prover.state import FAILED, OPEN, PAD
from kgverify.trace.model.columns import CandidateSet


class PaddedEvaluator:
    """Evaluates candidates as published designs do (see the package).

    slots:      derivations in flight
    capacity:   most candidates of one call; the pool has a row for each `slots` of them
    recomputes: whether resolvents are computed at every step; if not, for the query alone, as published
    mode:       as of `CompiledEngine`: `auto` captures graphs on CUDA
    """

    def __init__(
        self,
        program: Program,
        limits: Limits,
        policy: Policy,
        *,
        slots: int,
        capacity: int,
        recomputes: bool = True,
        mode: str = "auto",
        device: str = "auto",
    ) -> None:
        check_policy(policy, program, limits)
        self._device = resolve_device(device)
        self._mode = resolve_mode(mode, self._device)
        self._recomputes = recomputes
        self._num_slots, self._num_turns = slots, -(-capacity // slots)
        self._segments = build_segments(program, limits.max_atoms, self._device)
        self._parameters = build_parameters(policy, self._device, torch.float32)
        self._limits = limits
        self._slots, self._pool = self._empty_slots(), self._empty_pool()
        self._resolvents = self._empty_resolvents()
        if self._mode != "eager":
            buffers = (*self._slots, *self._pool, *self._resolvents, *self._segments, *self._parameters)
            for buffer in buffers:
                torch._dynamo.mark_static_address(buffer)

        # Tables and weights are arguments: what a closure holds is copied before each replay of a graph.
        def run_engine(segments: Segments, slots: Slots, resolvents: Resolvents) -> Resolvents:
            fresh = compute_resolvents(segments, limits, slots.goal, slots.query, slots.visited, slots.depth)
            renews = slots.is_fresh | recomputes
            return Resolvents(
                torch.where(renews[:, None, None, None], fresh.atoms, resolvents.atoms),
                torch.where(renews, fresh.count, resolvents.count),
                torch.where(renews, fresh.kind, resolvents.kind),
                torch.where(renews, fresh.is_limited, resolvents.is_limited),
            )

        def run_step(
            segments: Segments, parameters: Parameters, slots: Slots, resolvents: Resolvents, pool: Pool
        ) -> tuple[Slots, Pool, Tensor]:
            return take_step(segments, limits, parameters, slots, resolvents, pool)

        self._run_engine = compile_function(run_engine, self._mode)
        self._run_step = compile_function(run_step, self._mode)
        self.num_steps = self.num_engine_calls = 0

    def evaluate(self, candidates: CandidateSet) -> Results:
        """Run every candidate to its end, counting in `num_steps` and `num_engine_calls`."""
        num = len(candidates.query)
        self._fill(candidates)
        self.num_steps = self.num_engine_calls = 0
        slots, pool, flags = recycle(self._segments, self._slots, self._pool)
        self._copy(slots, pool)
        while True:
            is_any_open, is_any_fresh = flags.tolist()  # the host waits here, at every step
            if not is_any_open:
                break
            if self._recomputes or is_any_fresh:
                self._begin_replay()
                _copy_all(self._resolvents, self._run_engine(self._segments, self._slots, self._resolvents))
                self.num_engine_calls += 1
            self._begin_replay()
            slots, pool, flags = self._run_step(
                self._segments, self._parameters, self._slots, self._resolvents, self._pool
            )
            self._copy(slots, pool)
            self.num_steps += 1
        place = np.arange(num)
        turn, column = place // self._num_slots, place % self._num_slots
        results = (buffer.cpu().numpy()[turn, column] for buffer in self._pool[1:])
        outcome, is_limited, log_probability = results
        return Results(outcome.astype(np.int32), is_limited, log_probability)

    def _fill(self, candidates: CandidateSet) -> None:
        query = np.full((self._num_turns * self._num_slots, 3), PAD, np.int64)
        query[: len(candidates.query)] = candidates.atom
        empty = self._empty_pool()
        rows = torch.as_tensor(query, device=self._device).view_as(empty.query)
        _copy_all(self._pool, empty._replace(query=rows))
        _copy_all(self._slots, self._empty_slots())
        _copy_all(self._resolvents, self._empty_resolvents())

    def _copy(self, slots: Slots, pool: Pool) -> None:
        _copy_all(self._slots, slots)
        _copy_all(self._pool, pool)

    def _begin_replay(self) -> None:
        if self._device.type == "cuda" and self._mode != "eager":
            torch.compiler.cudagraph_mark_step_begin()

    def _full(self, shape: tuple[int, ...], value: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.full(shape, value, dtype=dtype, device=self._device)

    def _empty_slots(self) -> Slots:
        n, a, d = self._num_slots, self._limits.max_atoms, self._limits.max_depth
        return Slots(
            goal=self._full((n, a, 3), PAD),
            query=self._full((n, 3), PAD),
            visited=self._full((n, d), 0),
            depth=self._full((n,), 0),
            outcome=self._full((n,), FAILED),
            is_limited=self._full((n,), 0, torch.bool),
            log_probability=self._full((n,), 0, torch.float64),
            turn=self._full((n,), -1),
            is_fresh=self._full((n,), 0, torch.bool),
        )

    def _empty_pool(self) -> Pool:
        shape = self._num_turns, self._num_slots
        return Pool(
            query=self._full((*shape, 3), PAD),
            outcome=self._full(shape, OPEN),
            is_limited=self._full(shape, 0, torch.bool),
            log_probability=self._full(shape, 0, torch.float64),
        )

    def _empty_resolvents(self) -> Resolvents:
        n, r, a = self._num_slots, self._limits.max_resolvents, self._limits.max_atoms
        return Resolvents(
            self._full((n, r, a, 3), PAD),
            self._full((n,), 0),
            self._full((n,), 0),
            self._full((n,), 0, torch.bool),
        )


def _copy_all(buffers: Any, values: Any) -> None:
    for buffer, value in zip(buffers, values, strict=True):
        if buffer is not value:
            buffer.copy_(value)
