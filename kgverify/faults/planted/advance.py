"""Faults of the stages `advance` and `finish`."""

import torch
from torch import Tensor

from kgverify.engines.compiled.state import FALSE, GOAL, PROVED, TRUE, Choices, Derivations, Rows, Work
from kgverify.faults.fault import Plant
from kgverify.faults.planted.altered_state import alter_derivations
from kgverify.faults.planted.match import match_nothing_for_padding


def keep_query_resolvents(plant: Plant) -> Plant:
    """Choose from the query's resolvents at every step: the goal to resolve stays the query."""
    sound = plant.stages.advance

    def advance(derivations: Derivations, work: Work, rows: Rows, choices: Choices, is_taken: Tensor) -> Derivations:
        after = sound(derivations, work, rows, choices, is_taken)
        goes_on = is_taken & (choices.kind == GOAL)
        return alter_derivations(after, goal=torch.where(goes_on[:, None, None], derivations.visited[:, 0], after.goal))

    return plant.with_stages(advance=advance)


def add_after_end(plant: Plant) -> Plant:
    """Go on adding log-probabilities for one step after the end; here one as large as the mean so far."""
    sound = plant.stages.advance

    def advance(derivations: Derivations, work: Work, rows: Rows, choices: Choices, is_taken: Tensor) -> Derivations:
        after = sound(derivations, work, rows, choices, is_taken)
        ends = is_taken & (choices.kind != GOAL)
        once_more = after.log_probability / after.depth.clamp(min=1)
        return alter_derivations(after, log_probability=after.log_probability + torch.where(ends, once_more, 0.0))

    return plant.with_stages(advance=advance)


def stop_one_step_early(plant: Plant) -> Plant:
    """Report DEPTH_LIMIT one step before `max_depth`."""
    sound = plant.stages.finish

    def finish(depth: Tensor, outcome: Tensor, kind: Tensor, is_taken: Tensor, max_depth: int) -> Tensor:
        return sound(depth, outcome, kind, is_taken, max_depth - 1)

    return plant.with_stages(finish=finish)


def fold_comparison(plant: Plant) -> Plant:
    """Fold `kind == TRUE` to False: a proof is not noticed, and the slot runs on from an empty goal."""
    sound = plant.stages.finish

    def finish(depth: Tensor, outcome: Tensor, kind: Tensor, is_taken: Tensor, max_depth: int) -> Tensor:
        return sound(depth, outcome, torch.where(kind == TRUE, GOAL, kind), is_taken, max_depth)

    return match_nothing_for_padding(plant.with_stages(finish=finish))


def credit_failure(plant: Plant) -> Plant:
    """Count the end of a derivation as a success, whatever the end is."""
    sound = plant.stages.finish

    def finish(depth: Tensor, outcome: Tensor, kind: Tensor, is_taken: Tensor, max_depth: int) -> Tensor:
        after = sound(depth, outcome, kind, is_taken, max_depth)
        return torch.where(is_taken & (kind == FALSE), PROVED, after).to(torch.int32)

    return plant.with_stages(finish=finish)
