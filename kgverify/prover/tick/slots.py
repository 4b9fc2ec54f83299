"""Slots, pools and half-taken steps on the device: empty ones, and slots that start from given positions."""

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kgverify.engines.protocol import Positions
from kgverify.errors import InternalError
from kgverify.program.limits import Limits
from kgverify.prover.state import NO_CANDIDATE, OPEN, PAD, PROVED, Derivations, Layout, Pool, Work
from kgverify.trace.model.columns import starts_of

_BLANK: Final = {
    Derivations: (NO_CANDIDATE, PAD, PAD, 0, PROVED, 0, 0, PAD),
    Work: (0,) * len(Work._fields),
    Pool: (PAD, -float("inf"), 0, 0, OPEN, 0, 0),
}
"""The value of each field where there is no derivation, no begun step and no candidate."""


def clear_(buffers: Derivations | Work | Pool) -> None:
    """Empty buffers, in place."""
    for buffer, value in zip(buffers, _BLANK[type(buffers)], strict=True):
        buffer.fill_(value)


def restart_(derivations: Derivations, work: Work, pool: Pool) -> None:
    """Empty the slots, and begin with the first candidate of the pool, in place."""
    clear_(derivations)
    clear_(work)
    pool.next_index.zero_()
    pool.outcome.fill_(OPEN)


def empty_derivations(layout: Layout, max_depth: int, device: torch.device) -> Derivations:
    """Return slots that hold no derivation."""
    b, a = layout.slots, layout.atoms

    def empty(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    derivations = Derivations(
        pool_index=empty(b, dtype=torch.int64),
        query=empty(b, 3),
        goal=empty(b, a, 3),
        depth=empty(b),
        outcome=empty(b),
        is_limited=empty(b, dtype=torch.bool),
        log_probability=empty(b, dtype=torch.float64),
        visited=empty(b, max_depth, a, 3),
    )
    clear_(derivations)
    return derivations


def empty_work(layout: Layout, device: torch.device) -> Work:
    """Return the work of slots in which no step has begun."""
    b, rows = layout.slots, layout.resolvents + 1

    def empty(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    work = Work(
        cursor=empty(b),
        num_survivors=empty(b),
        num_kept=empty(b),
        dropped_atoms=empty(b),
        dropped_resolvents=empty(b),
        true_origin_kind=empty(b, dtype=torch.int32),
        true_origin=empty(b, dtype=torch.int32),
        origin_kind=empty(b, rows, dtype=torch.int32),
        origin=empty(b, rows, dtype=torch.int32),
    )
    clear_(work)
    return work


def empty_pool(layout: Layout, device: torch.device) -> Pool:
    """Return a pool without candidates."""
    p = layout.pool
    pool = Pool(
        query=torch.empty((p, 3), dtype=torch.int32, device=device),
        floor=torch.empty(p, dtype=torch.float64, device=device),
        size=torch.empty((), dtype=torch.int64, device=device),
        next_index=torch.empty((), dtype=torch.int64, device=device),
        outcome=torch.empty(p, dtype=torch.int32, device=device),
        is_limited=torch.empty(p, dtype=torch.bool, device=device),
        log_probability=torch.empty(p, dtype=torch.float64, device=device),
    )
    clear_(pool)
    return pool


def derivations_at(positions: Positions, layout: Layout, limits: Limits, device: torch.device) -> Derivations:
    """Put each position into a slot. InternalError if one does not fit; there are at most as many positions as slots."""
    num = len(positions.depth)
    num_goals, num_atoms = positions.num_goals.astype(np.int64), positions.num_atoms.astype(np.int64)
    if num_atoms.max(initial=0) > layout.atoms or num_goals.max(initial=0) > limits.max_depth:
        raise InternalError("a position does not fit the limits under which the engine was built")
    slot = np.repeat(np.arange(num), num_goals)
    turn = np.arange(len(num_atoms)) - np.repeat(starts_of(num_goals)[:-1], num_goals)
    visited = np.full((layout.slots, limits.max_depth, layout.atoms, 3), PAD, np.int32)
    column = np.arange(int(num_atoms.sum())) - np.repeat(starts_of(num_atoms)[:-1], num_atoms)
    visited[np.repeat(slot, num_atoms), np.repeat(turn, num_atoms), column] = positions.atoms

    empty = empty_derivations(layout, limits.max_depth, device)
    visited_tensor = torch.as_tensor(visited, device=device)
    current = torch.as_tensor(num_goals - 1, device=device)

    def first_slots(held: Tensor, values: NDArray[np.generic]) -> Tensor:
        held = held.clone()
        held[:num] = torch.as_tensor(values, device=device, dtype=held.dtype)
        return held

    is_used = torch.arange(layout.slots, device=device) < num
    turns = torch.nn.functional.pad(current, (0, layout.slots - num))
    slots = torch.arange(layout.slots, device=device)
    return empty._replace(
        pool_index=torch.where(is_used, slots, NO_CANDIDATE),
        query=first_slots(empty.query, positions.candidates.atom),
        goal=torch.where(is_used[:, None, None], visited_tensor[slots, turns], PAD),
        depth=first_slots(empty.depth, positions.depth),
        outcome=torch.where(is_used, OPEN, empty.outcome).int(),
        visited=visited_tensor,
    )
