"""Slots, pools and half-taken steps on the device: empty ones, and slots that start from given positions."""

from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kgverify.engines.protocol import Positions
from kgverify.errors import InternalError
from kgverify.program.limits import Limits
from kgverify.prover.state import NO_CANDIDATE, OPEN, PAD, PROVED, Derivations, Layout, Pool, Work
from kgverify.trace.model.columns import starts_of

_INT, _LONG, _BOOL, _DOUBLE = torch.int32, torch.int64, torch.bool, torch.float64

_FIELDS: Final[dict[type[NamedTuple], tuple[tuple[torch.dtype, str, float], ...]]] = {
    Derivations: (
        (_LONG, "B", NO_CANDIDATE),
        (_INT, "B3", PAD),
        (_INT, "BA3", PAD),
        (_INT, "B", 0),
        (_INT, "B", PROVED),
        (_BOOL, "B", 0),
        (_DOUBLE, "B", 0),
        (_INT, "BDA3", PAD),
    ),
    Work: (*((_LONG, "B", 0),) * 5, *((_INT, "B", 0),) * 2, *((_INT, "BS", 0),) * 2),
    Pool: (
        (_INT, "P3", PAD),
        (_DOUBLE, "P", -float("inf")),
        *((_LONG, "", 0),) * 2,
        (_INT, "P", OPEN),
        (_BOOL, "P", 0),
        (_DOUBLE, "P", 0),
    ),
}
"""The type and the axes of each field, and its value where there is no derivation, no begun step and no candidate."""


def clear_(buffers: Derivations | Work | Pool) -> None:
    """Empty buffers, in place."""
    for buffer, (_, _, blank) in zip(buffers, _FIELDS[type(buffers)], strict=True):
        buffer.fill_(blank)


def restart_(derivations: Derivations, work: Work, pool: Pool) -> None:
    """Empty the slots, and begin with the first candidate of the pool, in place."""
    clear_(derivations)
    clear_(work)
    pool.next_index.zero_()
    pool.outcome.fill_(OPEN)


def _list_blank(kind: type[NamedTuple], layout: Layout, device: torch.device, max_depth: int = 0) -> list[Tensor]:
    sizes = {"B": layout.slots, "A": layout.atoms, "D": max_depth, "S": layout.resolvents + 1, "P": layout.pool, "3": 3}
    return [
        torch.full([sizes[axis] for axis in axes], blank, dtype=dtype, device=device)
        for dtype, axes, blank in _FIELDS[kind]
    ]


def empty_derivations(layout: Layout, max_depth: int, device: torch.device) -> Derivations:
    """Return slots that hold no derivation."""
    return Derivations(*_list_blank(Derivations, layout, device, max_depth))


def empty_work(layout: Layout, device: torch.device) -> Work:
    """Return the work of slots in which no step has begun."""
    return Work(*_list_blank(Work, layout, device))


def empty_pool(layout: Layout, device: torch.device) -> Pool:
    """Return a pool without candidates."""
    return Pool(*_list_blank(Pool, layout, device))


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
