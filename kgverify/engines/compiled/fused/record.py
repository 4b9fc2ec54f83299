"""What fused ticks did, noted on the device: steps and resolvents without padding, or the digests of steps."""

from typing import Final, NamedTuple

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from kgverify.engines.compiled.fused.note_kernels import (
    digest_kernel,
    hash_rows_kernel,
    move_base_kernel,
    note_rows_kernel,
    note_steps_kernel,
)
from kgverify.engines.compiled.fused.resolve_kernels import MOST_ATOMS
from kgverify.engines.compiled.launching import launch as launch_kernel
from kgverify.engines.compiled.record import Chunk, StepDigests
from kgverify.engines.compiled.state import GOAL, PAD, Derivations, Layout, Work
from kgverify.logic.limits import Limits
from kgverify.trace.columns import Digests, Resolvents, Steps

_LANES: Final = 128
_WARP: Final = 32


class Decisions(NamedTuple):
    """What the step of each slot gives, where it is taken at this tick.

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
    """The score window. slot: int32 [R]; atoms: int32 [R, A, 3]; score: float32 [R]. A slot's rows are next to one another."""

    slot: Tensor
    atoms: Tensor
    score: Tensor


class Noted(NamedTuple):
    """What there is to note of a tick. num_rows: int32 []."""

    derivations: Derivations
    work: Work
    decisions: Decisions
    rows: RowBuffers
    num_rows: Tensor


class _Steps(NamedTuple):
    """Steps in any order: place and first int64 [T], goal int32 [T, A, 3], the others int32 [T]. first: of the rows noted."""

    place: Tensor
    depth: Tensor
    kind: Tensor
    num_resolvents: Tensor
    dropped_atoms: Tensor
    dropped_resolvents: Tensor
    choice: Tensor
    outcome: Tensor
    first: Tensor
    true_kind: Tensor
    true_origin: Tensor
    goal: Tensor


class _Rows(NamedTuple):
    """Resolvents: origin_kind int8 [R], origin int32 [R], score float32 [R], atoms int32 [R, A, 3]."""

    origin_kind: Tensor
    origin: Tensor
    score: Tensor
    atoms: Tensor


class StepLog:
    """Steps and resolvents of some ticks."""

    def __init__(self, noted: Noted, limits: Limits, layout: Layout, num_ticks: int) -> None:
        self._noted, self._limits, self._layout = noted, limits, layout
        device = noted.num_rows.device
        # A window is seldom full.
        num_steps, num_rows = num_ticks * layout.slots, max(3, num_ticks // 4) * layout.score_window

        def empty(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        columns = {name: empty(num_steps) for name in _Steps._fields}
        columns |= {name: empty(num_steps, dtype=torch.int64) for name in ("place", "first")}
        self._steps = _Steps(**columns | {"goal": empty(num_steps, layout.atoms, 3)})
        self._rows = _Rows(
            empty(num_rows, dtype=torch.int8),
            empty(num_rows),
            empty(num_rows, dtype=torch.float32),
            empty(num_rows, layout.atoms, 3),
        )
        self._num_steps = torch.zeros((), dtype=torch.int32, device=device)
        self._num_rows = torch.zeros((), dtype=torch.int64, device=device)

    def clear(self) -> None:
        """Forget what was noted."""
        self._num_steps.zero_()
        self._num_rows.zero_()

    def note_(self) -> None:
        """Note the tick that was decided and is not yet carried out."""
        noted, layout = self._noted, self._layout
        words = 3 * layout.atoms
        launch_kernel(
            note_steps_kernel,
            layout.slots,
            noted.derivations,
            noted.work,
            noted.decisions,
            self._steps,
            self._num_steps,
            self._num_rows,
            self._limits.max_depth,
            layout.atoms,
            BLOCK=max(_WARP, triton.next_power_of_2(words)),
            num_warps=1,
        )
        launch_kernel(
            note_rows_kernel,
            triton.cdiv(layout.score_window, _LANES),
            noted.work,
            noted.decisions,
            noted.rows,
            noted.num_rows,
            self._rows,
            self._num_rows,
            noted.work.origin.shape[1],
            layout.score_window,
            layout.atoms,
            BLOCK=_LANES,
        )
        launch_kernel(move_base_kernel, 1, noted.num_rows, self._num_rows, layout.score_window)

    def has_room(self, num_ticks: int) -> bool:
        """Whether so many more ticks fit, whatever they do."""
        rows_left, steps_left = (
            len(self._rows.origin) - int(self._num_rows),
            len(self._steps.depth) - int(self._num_steps),
        )
        return rows_left >= num_ticks * self._layout.score_window and steps_left >= num_ticks * self._layout.slots

    def take(self) -> Chunk | None:
        """What was noted, by candidate and depth; then forget it. It is put in order on the device."""
        num_steps = int(self._num_steps)
        if not num_steps:
            return None
        steps = _Steps(*(column[:num_steps] for column in self._steps))
        order = torch.argsort(steps.place * (self._limits.max_depth + 1) + steps.depth)
        steps = _Steps(*(column[order] for column in steps))
        num_atoms = (steps.goal[..., 0] != PAD).sum(1)
        fetch = _Fetch()
        chunk = Chunk(
            fetch(steps.place, np.int64),
            Steps(
                depth=fetch(steps.depth, np.uint16),
                num_atoms=fetch(num_atoms, np.uint16),
                num_resolvents=fetch(steps.num_resolvents, np.uint32),
                dropped_atoms=fetch(steps.dropped_atoms, np.uint32),
                dropped_resolvents=fetch(steps.dropped_resolvents, np.uint32),
                choice=fetch(steps.choice, np.int32),
                outcome=fetch(steps.outcome, np.int8),
                goal_atoms=fetch(steps.goal[steps.goal[..., 0] != PAD], np.int32),
            ),
            self._take_resolvents(steps, fetch),
        )
        fetch.wait()
        self.clear()
        return chunk

    def _take_resolvents(self, steps: _Steps, fetch: "_Fetch") -> Resolvents:
        owner = torch.repeat_interleave(steps.num_resolvents)
        ends = steps.num_resolvents.long().cumsum(0)
        ordinal = torch.arange(len(owner), device=owner.device) - (ends - steps.num_resolvents)[owner]
        kind = steps.kind[owner]
        is_goal = kind == GOAL
        # TRUE and FALSE standing alone have no rows.
        row = torch.where(is_goal, steps.first[owner] + ordinal, 0)
        atoms = self._rows.atoms[row]
        is_atom = (atoms[..., 0] != PAD) & is_goal[:, None]
        return Resolvents(
            kind=fetch(kind, np.uint8),
            num_atoms=fetch(is_atom.sum(1), np.uint16),
            origin_kind=fetch(torch.where(is_goal, self._rows.origin_kind[row], steps.true_kind[owner]), np.uint8),
            origin=fetch(torch.where(is_goal, self._rows.origin[row], steps.true_origin[owner]), np.int32),
            score=fetch(torch.where(is_goal, self._rows.score[row], 0.0), np.float32),
            atoms=fetch(atoms[is_atom], np.int32),
        )


class _Fetch:
    """Copies to the host that are under way, until they are waited for."""

    _SIGNED: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

    def __call__(self, tensor: Tensor, dtype: "type[np.generic]") -> NDArray:  # type: ignore[type-arg]
        kind = np.dtype(dtype)
        if kind.kind != "f":
            # Numbers without a sign keep their bits.
            tensor = tensor.to(self._SIGNED[kind.itemsize])
        if not tensor.is_cuda:
            return tensor.contiguous().clone().numpy().view(kind)
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        host.copy_(tensor, non_blocking=True)
        return host.numpy().view(kind)

    def wait(self) -> None:
        """Until all copies are there."""
        if torch.cuda.is_available():
            torch.cuda.current_stream().synchronize()


class DigestLog:
    """The digests of every step of a pool, at its candidate's place and its depth.

    Goals are canonical, so that the digest blind to numbering is the one of everything.
    """

    def __init__(self, noted: Noted, limits: Limits, layout: Layout) -> None:
        self._noted, self._limits, self._layout = noted, limits, layout
        device = noted.num_rows.device
        self._hashes = torch.zeros(layout.score_window, dtype=torch.int64, device=device)
        self._sequence = torch.zeros((layout.pool, limits.max_depth), dtype=torch.int64, device=device)
        self._multiset = torch.zeros_like(self._sequence)

    def note_(self) -> None:
        """Note the tick that was decided and is not yet carried out."""
        noted, layout = self._noted, self._layout
        launch_kernel(
            hash_rows_kernel,
            triton.cdiv(layout.score_window, _LANES),
            noted.rows,
            noted.num_rows,
            self._hashes,
            layout.score_window,
            layout.atoms,
            BLOCK=_LANES,
        )
        launch_kernel(
            digest_kernel,
            layout.slots,
            noted.derivations,
            noted.work,
            noted.decisions,
            self._hashes,
            self._sequence,
            self._multiset,
            self._limits.max_depth,
            layout.atoms,
            ATOMS=triton.next_power_of_2(MOST_ATOMS),
            BLOCK=max(_WARP, triton.next_power_of_2(self._limits.max_resolvents)),
            num_warps=1,
        )

    def take(self, num_steps: Tensor) -> StepDigests:
        """The digests of candidates that took so many steps, int32 [N], one after the other."""
        num = len(num_steps)
        is_step = torch.arange(self._limits.max_depth, device=num_steps.device) < num_steps[:, None]
        fetch = _Fetch()
        sequence, multiset = (fetch(digests[:num][is_step], np.uint64) for digests in (self._sequence, self._multiset))
        counts = fetch(num_steps, np.uint32)
        fetch.wait()
        return StepDigests(counts, Digests(sequence, multiset, sequence))
