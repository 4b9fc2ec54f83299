"""Faults of the stage `close`: what counts as a proof and as a dead end."""

import torch
from torch import Tensor

from kgverify.engines.compiled.state import FALSE, GOAL, TRUE, Choices, Derivations, Rows, Work
from kgverify.faults.fault import Plant
from kgverify.faults.planted.altered_state import alter_derivations


def read_overflow_as_proof(plant: Plant) -> Plant:
    """Count an all-padding row as valid where resolvents are dropped beyond the cap: an empty goal is a proof.

    Rows beyond the cap and invalid rows are scattered to the same last row; whichever is written last stays.
    """
    sound = plant.stages.close
    cap = plant.run.limits.max_resolvents

    def close(num_survivors: Tensor, true_origin_kind: Tensor, num_kept: Tensor) -> Tensor:
        is_full = (num_kept >= cap) & (num_survivors > num_kept)
        return torch.where(is_full, TRUE, sound(num_survivors, true_origin_kind, num_kept)).to(torch.int32)

    return plant.with_stages(close=close)


def leave_dead_ends(plant: Plant) -> Plant:
    """Do not turn a dead end into FALSE: the slot stays at its goal until the depth limit.

    Where `limit` has left nothing, FALSE stands.
    """
    sound, sound_advance = plant.stages.close, plant.stages.advance

    def close(num_survivors: Tensor, true_origin_kind: Tensor, num_kept: Tensor) -> Tensor:
        kind = sound(num_survivors, true_origin_kind, num_kept)
        return torch.where((kind == FALSE) & (num_survivors == 0), GOAL, kind).to(torch.int32)

    def advance(derivations: Derivations, work: Work, rows: Rows, choices: Choices, is_taken: Tensor) -> Derivations:
        after = sound_advance(derivations, work, rows, choices, is_taken)
        is_stuck = is_taken & (choices.num_resolvents == 0)
        return alter_derivations(
            after,
            goal=torch.where(is_stuck[:, None, None], derivations.goal, after.goal),
            visited=torch.where(is_stuck[:, None, None, None], derivations.visited, after.visited),
        )

    return plant.with_stages(close=close, advance=advance)


def keep_siblings(plant: Plant) -> Plant:
    """Continue with the other resolvents where some are left beside TRUE."""
    sound = plant.stages.close

    def close(num_survivors: Tensor, true_origin_kind: Tensor, num_kept: Tensor) -> Tensor:
        kind = sound(num_survivors, true_origin_kind, num_kept)
        return torch.where((kind == TRUE) & (num_kept > 0), GOAL, kind).to(torch.int32)

    return plant.with_stages(close=close)


def close_whole_batch(plant: Plant) -> Plant:
    """Collapse the lists of the whole batch at one slot's proof: every other slot loses its resolvents."""
    sound = plant.stages.close

    def close(num_survivors: Tensor, true_origin_kind: Tensor, num_kept: Tensor) -> Tensor:
        kind = sound(num_survivors, true_origin_kind, num_kept)
        return torch.where((kind == TRUE).any() & (kind == GOAL), FALSE, kind).to(torch.int32)

    return plant.with_stages(close=close)
