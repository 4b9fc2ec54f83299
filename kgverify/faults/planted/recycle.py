"""Faults of the pool: which candidates run, and what a slot's next derivation inherits."""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from kgverify.engines.compiled.stages.resolve import first_set
from kgverify.engines.compiled.state import (
    FAILED,
    GOAL,
    NO_CANDIDATE,
    OPEN,
    PAD,
    PROVED,
    Choices,
    Derivations,
    Pool,
    Rows,
    Work,
)
from kgverify.faults.fault import Plant
from kgverify.faults.planted.altered_state import alter_derivations, alter_pool

_Share: TypeAlias = Callable[[Tensor, int], Tensor]
"""A function (candidates in the pool int64 [], slots) -> number of candidates run."""


def drop_beyond_slots(plant: Plant) -> Plant:
    """Run as many candidates as there are slots; the rest count as failures."""

    def share(size: Tensor, num_slots: int) -> Tensor:
        return size.clamp(max=num_slots)

    return _run_first(plant, share)


def give_equal_shares(plant: Plant) -> Plant:
    """Let slot i take candidates i, i + N, ..., each slot as many as every other: the remainder is never run."""

    def share(size: Tensor, num_slots: int) -> Tensor:
        return torch.where(size < num_slots, size, size // num_slots * num_slots)

    return _run_first(plant, share)


def _run_first(plant: Plant, share: _Share) -> Plant:
    sound = plant.stages.recycle

    def recycle(pool: Pool, derivations: Derivations) -> tuple[Pool, Derivations]:
        num_run = share(pool.size, derivations.outcome.shape[0])
        after, next_derivations = sound(alter_pool(pool, size=num_run), derivations)
        index = torch.arange(pool.outcome.shape[0], device=pool.outcome.device)
        never_runs = (index >= num_run) & (index < pool.size)
        outcome = torch.where(never_runs, FAILED, after.outcome).to(torch.int32)
        return alter_pool(after, size=pool.size, outcome=outcome), next_derivations

    return plant.with_stages(recycle=recycle)


def stop_at_budget(plant: Plant) -> Plant:
    """Stop after `max_depth` ticks, whatever is left in the slots and in the pool; it counts as failed."""
    sound, budget = plant.stages.recycle, plant.run.limits.max_depth

    def recycle(pool: Pool, derivations: Derivations) -> tuple[Pool, Derivations]:
        num_ticks = _recall(pool, 1, 1)
        is_over = (num_ticks >= budget).any()
        stopped = torch.where(is_over & (derivations.outcome == OPEN), FAILED, derivations.outcome).int()
        num_left = torch.where(is_over, 0, pool.size)
        after, next_derivations = sound(
            alter_pool(pool, size=num_left), alter_derivations(derivations, outcome=stopped)
        )
        index = torch.arange(pool.outcome.shape[0], device=pool.outcome.device)
        is_left = is_over & (index < pool.size) & (after.outcome == OPEN)
        outcome = torch.where(is_left, FAILED, after.outcome).to(torch.int32)
        after = alter_pool(after, size=pool.size, outcome=outcome)
        return _remember(after, 1, num_ticks + 1), next_derivations

    return plant.with_stages(recycle=recycle)


def keep_excluded_atom(plant: Plant) -> Plant:
    """Exclude the atom of the slot's first candidate for all that follow in it."""
    sound = plant.stages.recycle

    def recycle(pool: Pool, derivations: Derivations) -> tuple[Pool, Derivations]:
        after, renewed = sound(pool, derivations)
        was_used = derivations.query[:, :1] != PAD
        return after, alter_derivations(renewed, query=torch.where(was_used, derivations.query, renewed.query))

    return plant.with_stages(recycle=recycle)


def keep_depth(plant: Plant) -> Plant:
    """Count the steps of the slot's next derivation from where the last one ended."""
    sound = plant.stages.recycle

    def recycle(pool: Pool, derivations: Derivations) -> tuple[Pool, Derivations]:
        after, renewed = sound(pool, derivations)
        return after, alter_derivations(renewed, depth=derivations.depth)

    return plant.with_stages(recycle=recycle)


def keep_success(plant: Plant) -> Plant:
    """Never reset a slot's success flag: once it has proved a candidate, all that follow in it count as proved."""
    sound = plant.stages.recycle

    def recycle(pool: Pool, derivations: Derivations) -> tuple[Pool, Derivations]:
        num_slots = derivations.outcome.shape[0]
        had_success = _recall(pool, 0, num_slots) == 1
        has_ended = (derivations.outcome != OPEN) & (derivations.pool_index != NO_CANDIDATE)
        reported = torch.where(has_ended & had_success, PROVED, derivations.outcome).int()
        after, renewed = sound(pool, alter_derivations(derivations, outcome=reported))
        success = (had_success | (has_ended & (derivations.outcome == PROVED))).int()
        return _remember(after, 0, success), renewed

    return plant.with_stages(recycle=recycle)


def overwrite_with_idle(plant: Plant) -> Plant:
    """Clamp the pool indices that results are written to: a slot with nothing to report writes to index 0."""
    sound = plant.stages.recycle

    def recycle(pool: Pool, derivations: Derivations) -> tuple[Pool, Derivations]:
        after, renewed = sound(pool, derivations)
        # Only a slot that has held a derivation, so that the first result is not lost before it is made.
        is_idle = (derivations.pool_index == NO_CANDIDATE) & (derivations.depth > 0)
        slot = first_set(is_idle[None])
        overwrites = is_idle.any() & (torch.arange(pool.outcome.shape[0], device=slot.device) == 0)

        def put(results: Tensor, values: Tensor) -> Tensor:
            return torch.where(overwrites, values[slot], results).to(results.dtype)

        return (
            alter_pool(
                after,
                outcome=put(after.outcome, derivations.outcome),
                is_limited=put(after.is_limited, derivations.is_limited),
                log_probability=put(after.log_probability, derivations.log_probability),
            ),
            renewed,
        )

    return plant.with_stages(recycle=recycle)


def read_neighbours_output(plant: Plant) -> Plant:
    """Read a slot's state back after the next replay has overwritten it.

    A slot that takes a step goes on from the query of the slot before, where that one takes its first step.
    """
    sound = plant.stages.advance

    def advance(derivations: Derivations, work: Work, rows: Rows, choices: Choices, is_taken: Tensor) -> Derivations:
        after = sound(derivations, work, rows, choices, is_taken)
        is_first = (derivations.depth == 0) & (derivations.outcome == OPEN)
        is_overwritten = is_taken & is_first.roll(1) & (derivations.pool_index.roll(1) != derivations.pool_index)
        goes_on = is_overwritten & (choices.kind == GOAL)
        return alter_derivations(
            after, goal=torch.where(goes_on[:, None, None], derivations.goal.roll(1, 0), after.goal)
        )

    return plant.with_stages(advance=advance)


def _recall(pool: Pool, column: int, num: int) -> Tensor:
    """Return the values that `_remember` wrote last in this pool, int32 [num]; 0 before, and where candidates leave no room.

    A pure function keeps no state; the last rows of a pool that is not full serve as its memory.
    """
    rows = _memory_rows(pool, num)
    values = pool.query[rows, column]
    return torch.where((values == PAD) | (rows < pool.size), 0, values)


def _remember(pool: Pool, column: int, values: Tensor) -> Pool:
    rows = _memory_rows(pool, values.shape[0])
    kept = torch.where(rows < pool.size, pool.query[rows, column], values.int())
    query = pool.query.clone()
    query[rows, column] = kept
    return alter_pool(pool, query=query)


def _memory_rows(pool: Pool, num: int) -> Tensor:
    size = pool.query.shape[0]
    return (size - 1 - torch.arange(num, device=pool.query.device)).clamp(min=0)
