"""From positions on the host to slots on the device."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kgverify.engines.compiled.state import NO_CANDIDATE, OPEN, PAD, Derivations, Layout
from kgverify.engines.compiled.tick.pool import empty_derivations
from kgverify.engines.protocol import Positions
from kgverify.errors import InternalError
from kgverify.program.limits import Limits
from kgverify.trace.model.columns import starts_of


def derivations_at(positions: Positions, layout: Layout, limits: Limits, device: torch.device) -> Derivations:
    """At most as many positions as there are slots, each in one; InternalError if one does not fit."""
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
        place=torch.where(is_used, slots, NO_CANDIDATE),
        query=first_slots(empty.query, positions.candidates.atom),
        goal=torch.where(is_used[:, None, None], visited_tensor[slots, turns], PAD),
        depth=first_slots(empty.depth, positions.depth),
        outcome=torch.where(is_used, OPEN, empty.outcome).int(),
        visited=visited_tensor,
    )
