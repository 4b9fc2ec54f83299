"""Logs of fused ticks on the device: steps and resolvents without padding, or the digests of steps."""

from typing import Final, NamedTuple

import numpy as np
import torch
import triton
from torch import Tensor

from kgverify.engines.protocol import StepDigests
from kgverify.garbage_collection import without_garbage_collection
from kgverify.program.limits import Limits
from kgverify.prover.execution.device import copy_to_host, count_processors
from kgverify.prover.execution.device import launch as launch_kernel
from kgverify.prover.fused.note_kernels import (
    digest_kernel,
    hash_rows_kernel,
    move_base_kernel,
    note_rows_kernel,
    note_steps_kernel,
)
from kgverify.prover.fused.order_kernels import place_kernel, send_kernel
from kgverify.prover.fused.resolve_kernels import MOST_ATOMS
from kgverify.prover.state import Derivations, Layout, Work, make_tuple_type
from kgverify.prover.tick.stage_ticks import Chunk, LoggedRows, LoggedSteps, fetch_columns
from kgverify.prover.tick.tick import TICKS_PER_REPLAY
from kgverify.torch.host_copy import HostCopy, PendingCopy, signed_type, wait_for_copies
from kgverify.trace.model.columns import FIELD_OF, STEP_COLUMNS, Digests, Resolvents, Steps

_LANES: Final = 128
_WARP: Final = 32
_MOST_TICKS: Final = 12 * TICKS_PER_REPLAY
_PROGRAMS_PER_PROCESSOR: Final = 32
_LEAST_TICKS: Final = 3 * TICKS_PER_REPLAY
"""Two replays are in progress before the host reads the counts."""
_STEP_BYTES: Final = 137
_ROW_BYTES: Final = 21
"""The bytes of a step and of a row, logged and sent, without atoms."""


class Decisions(NamedTuple):
    """The results of the steps that slots take at this tick.

    is_taken:        int32   [B]
    kind:            int32   [B]
    first:           int64   [B]  row of the first resolvent
    num_resolvents:  int64   [B]
    choice:          int64   [B]
    log_probability: float64 [B]
    """

    is_taken: Tensor
    kind: Tensor
    first: Tensor
    num_resolvents: Tensor
    choice: Tensor
    log_probability: Tensor


class RowBuffers(NamedTuple):
    """The score window. slot: int32 [R]; atoms: int32 [R, A, 3]; score: float32 [R]. A slot's rows are adjacent."""

    slot: Tensor
    atoms: Tensor
    score: Tensor


class TickBuffers(NamedTuple):
    """The buffers of a tick that logs read. num_rows: int32 []."""

    derivations: Derivations
    work: Work
    decisions: Decisions
    rows: RowBuffers
    num_rows: Tensor


class CandidateSteps(NamedTuple):
    """The logged steps of each candidate of the pool. num: int32 [P]; depth: int32 [P]  of the first logged step."""

    num: Tensor
    depth: Tensor


_NUM_ATOMS: Final = {"num_atoms": "num_goal_atoms"}
SentColumns: Final = make_tuple_type(
    "SentColumns", ("pool_index", *(_NUM_ATOMS.get(name, name) for name in STEP_COLUMNS), *Resolvents._fields)
)
"""The T steps and R resolvents in the order of the candidates: the columns of `Steps` and `Resolvents`, but signed.

num_goal_atoms, goal_atoms: of the steps; num_atoms, atoms: of the resolvents; the atoms int32 [., 3]
"""


def _bytes_of_tick(layout: Layout) -> int:
    """Return the bytes that a log needs for a tick, including those for ordering the log before it is copied."""
    goal_bytes = 2 * 12 * layout.atoms
    return layout.slots * (goal_bytes + _STEP_BYTES) + layout.score_window * (goal_bytes + _ROW_BYTES)


def count_least_bytes(layout: Layout) -> int:
    """Return the bytes of the smallest log of steps."""
    return _LEAST_TICKS * _bytes_of_tick(layout)


class StepLog:
    """A log of steps and resolvents, for the number of ticks that fits in the memory.

    memory: the bytes to use; more if three replays need more
    """

    def __init__(self, noted: TickBuffers, limits: Limits, layout: Layout, memory: int) -> None:
        self._noted, self._limits, self._layout = noted, limits, layout
        device = noted.num_rows.device
        num_ticks = max(_LEAST_TICKS, min(_MOST_TICKS, memory // _bytes_of_tick(layout)))
        num_steps, num_rows = num_ticks * layout.slots, num_ticks * layout.score_window

        def empty(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        columns = {name: empty(num_steps) for name in LoggedSteps._fields}
        columns |= {name: empty(num_steps, dtype=torch.int64) for name in ("pool_index", "first")}
        self._steps = LoggedSteps(**columns | {"goal": empty(num_steps, layout.atoms, 3)})
        self._rows = LoggedRows(
            empty(num_rows, dtype=torch.int8),
            empty(num_rows),
            empty(num_rows, dtype=torch.float32),
            empty(num_rows, layout.atoms, 3),
        )

        def flat(level: str, fields: tuple[str, ...], num: int) -> list[Tensor]:
            types = (signed_type(FIELD_OF[f"{level}/{name}"].dtypes[0]) for name in fields[:-1])
            return [empty(num, dtype=dtype) for dtype in types]

        of_steps = flat("steps", STEP_COLUMNS, num_steps)
        of_resolvents = flat("resolvents", Resolvents._fields, num_steps + num_rows)
        goal_atoms, atoms = (empty(num * layout.atoms, 3) for num in (num_steps, num_rows))
        pool_index = empty(num_steps, dtype=torch.int64)
        self._sent = SentColumns(*[pool_index, *of_steps, goal_atoms, *of_resolvents, atoms])
        # A position may be in any slot.
        num_candidates = max(layout.pool, layout.slots)
        self._candidates = CandidateSteps(empty(num_candidates), empty(num_candidates))
        self._start = empty(num_candidates, dtype=torch.int64)
        self._order = empty(num_steps, dtype=torch.int64)
        self._sizes, self._ends = empty(3, num_steps), empty(3, num_steps, dtype=torch.int64)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._is_compiled = False
        self._num_steps = torch.zeros((), dtype=torch.int32, device=device)
        self._num_rows = torch.zeros((), dtype=torch.int64, device=device)
        # The counts when they were last read, and the largest number of ticks launched since.
        self._steps_seen = self._rows_seen = self._ticks_since = 0

    def clear(self) -> None:
        """Clear the log."""
        self._num_steps.zero_()
        self._num_rows.zero_()
        self._candidates.num.zero_()
        self._steps_seen = self._rows_seen = 0
        # A replay is in progress before the first look.
        self._ticks_since = TICKS_PER_REPLAY

    def note_(self) -> None:
        """Log the tick that is decided but not yet executed."""
        noted, layout = self._noted, self._layout
        words = 3 * layout.atoms
        launch_kernel(
            note_steps_kernel,
            layout.slots,
            (
                noted.derivations,
                noted.work,
                noted.decisions,
                self._steps,
                self._candidates,
                self._num_steps,
                self._num_rows,
            ),
            (self._limits.max_depth, layout.atoms),
            BLOCK=max(_WARP, triton.next_power_of_2(words)),
            num_warps=1,
        )
        launch_kernel(
            note_rows_kernel,
            triton.cdiv(layout.score_window, _LANES),
            (noted.work, noted.decisions, noted.rows, noted.num_rows, self._rows, self._num_rows),
            (noted.work.origin.shape[1], layout.score_window, layout.atoms),
            BLOCK=_LANES,
        )
        launch_kernel(move_base_kernel, 1, (noted.num_rows, self._num_rows), (layout.score_window,))

    def has_room(self) -> bool:
        """Return whether another replay surely fits.

        Call this once after each replay; it waits for the device only in doubt.
        """
        self._ticks_since += TICKS_PER_REPLAY
        if self._fits():
            return True
        self._steps_seen, self._rows_seen = int(self._num_steps), int(self._num_rows)
        self._ticks_since = 0
        return self._fits()

    def _fits(self) -> bool:
        ticks = self._ticks_since + TICKS_PER_REPLAY
        return self._steps_seen + ticks * self._layout.slots <= len(
            self._steps.depth
        ) and self._rows_seen + ticks * self._layout.score_window <= len(self._rows.origin)

    def send(self) -> PendingCopy[Chunk] | None:
        """Start copying the logged steps, ordered on the device by candidate and depth, to the host; then clear the log."""
        self._put_in_order()
        logged, totals = copy_to_host(self._num_steps, self._ends[:, -1])
        num_steps, (num_resolvents, num_goal_atoms, num_atoms) = int(logged), totals.tolist()
        if not num_steps:
            return None
        copies = HostCopy()
        sent = self._sent

        # The columns that take longest are copied while the rest is prepared.
        atoms = copies.fetch(sent.atoms[:num_atoms], np.int32)
        copies.begin()
        pool_index, *of_steps = (column[:num_steps] for column in sent[: len(STEP_COLUMNS)])
        of_resolvents = [column[:num_resolvents] for column in sent[len(STEP_COLUMNS) + 1 : -1]]
        chunk = Chunk(
            copies.fetch(pool_index, np.int64),
            Steps(*fetch_columns(copies, Steps, *of_steps, sent.goal_atoms[:num_goal_atoms])),
            Resolvents(*[*fetch_columns(copies, Resolvents, *of_resolvents), atoms]),
        )
        copies.begin()
        self.clear()
        return PendingCopy(chunk, copies)

    def _put_in_order(self) -> None:
        """Put the log in order without waiting.

        This is one graph, captured at the second call, when everything is compiled.
        """
        device = self._num_steps.device
        if device.type != "cuda":
            self._launch_order()
            return
        # The copies of earlier ordered steps must be complete.
        wait_for_copies(device)
        if self._graph is not None:
            self._graph.replay()
        elif not self._is_compiled:
            self._launch_order()
            self._is_compiled = True
        else:
            graph = torch.cuda.CUDAGraph()
            with without_garbage_collection(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._launch_order()
            self._graph = graph
            graph.replay()

    def _launch_order(self) -> None:
        candidates, sizes, num_places = self._candidates, self._sizes, len(self._order)
        torch.cumsum(candidates.num, 0, out=self._start)
        self._start.sub_(candidates.num)
        sizes.zero_()
        num_programs = min(num_places, _PROGRAMS_PER_PROCESSOR * count_processors(sizes.device))
        options = {
            "ATOMS": triton.next_power_of_2(MOST_ATOMS),
            "BLOCK": max(_WARP, triton.next_power_of_2(self._limits.max_resolvents)),
            "num_warps": 1,
        }
        shape = num_places, self._layout.atoms
        found = self._num_steps, self._order, sizes
        launch_kernel(
            place_kernel, num_programs, (self._steps, self._rows, candidates, self._start, *found), shape, **options
        )
        # One after the other: along the last of two axes, torch is a hundred times slower.
        for each, ends in zip(sizes, self._ends, strict=True):
            torch.cumsum(each, 0, out=ends)
        launch_kernel(
            send_kernel, num_programs, (self._steps, self._rows, self._sent, *found, self._ends), shape, **options
        )

    def take(self) -> Chunk | None:
        """Copy the logged steps to the host and clear the log."""
        sent = self.send()
        return None if sent is None else sent.wait()


class DigestLog:
    """A log of the digests of every step of a pool, at the candidate's pool index and the step's depth.

    Goals are canonical, so the digest up to renaming equals the digest of the exact sequence.
    """

    def __init__(self, noted: TickBuffers, limits: Limits, layout: Layout) -> None:
        self._noted, self._limits, self._layout = noted, limits, layout
        device = noted.num_rows.device
        self._hashes = torch.zeros(layout.score_window, dtype=torch.int64, device=device)
        self._sequence = torch.zeros((layout.pool, limits.max_depth), dtype=torch.int64, device=device)
        self._multiset = torch.zeros_like(self._sequence)

    def note_(self) -> None:
        """Log the tick that is decided but not yet executed."""
        noted, layout = self._noted, self._layout
        launch_kernel(
            hash_rows_kernel,
            triton.cdiv(layout.score_window, _LANES),
            (noted.rows, noted.num_rows, self._hashes),
            (layout.score_window, layout.atoms),
            BLOCK=_LANES,
        )
        launch_kernel(
            digest_kernel,
            layout.slots,
            (noted.derivations, noted.work, noted.decisions, self._hashes, self._sequence, self._multiset),
            (self._limits.max_depth, layout.atoms),
            ATOMS=triton.next_power_of_2(MOST_ATOMS),
            BLOCK=max(_WARP, triton.next_power_of_2(self._limits.max_resolvents)),
            num_warps=1,
        )

    def send(self, num_steps: Tensor, total: int | None) -> PendingCopy[StepDigests]:
        """Start copying the digests of candidates to the host, one after the other.

        num_steps: int32 [N], for each candidate; total: the sum, or None if unknown; then this waits for the device and
                   for earlier copies
        """
        if total is None:
            total = int(copy_to_host(num_steps.sum())[0])
        owner = torch.repeat_interleave(num_steps, output_size=total)
        first = num_steps.cumsum(0) - num_steps
        at = owner * self._limits.max_depth + torch.arange(total, device=num_steps.device) - first[owner]
        copies = HostCopy()
        sequence, multiset = (copies.fetch(each.view(-1)[at], np.uint64) for each in (self._sequence, self._multiset))
        # The counts are written again by the next pool.
        counts = copies.fetch(num_steps.clone(), np.uint32)
        copies.begin()
        return PendingCopy(StepDigests(counts, Digests(sequence, multiset, sequence)), copies)
