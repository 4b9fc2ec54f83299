"""Faults of the pool and across slots: some candidates do not run, or a slot's next derivation inherits something."""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from kgverify.prover.faults.fault import Plant, plants, replaces
from kgverify.prover.faults.step_faults import Advance, TensorStage
from kgverify.prover.program.tables import Tables
from kgverify.prover.stages.resolve import first_set
from kgverify.prover.state import (
    FAILED,
    FALSE,
    GOAL,
    NO_CANDIDATE,
    OPEN,
    PAD,
    PROVED,
    TRUE,
    Choices,
    Derivations,
    Pool,
    Rows,
    Work,
    alter,
)

Recycled: TypeAlias = tuple[Pool, Derivations]
Recycle: TypeAlias = Callable[[Pool, Derivations], Recycled]


@replaces("queries-beyond-slots", "recycle")
def drop_beyond_slots(sound: Recycle, pool: Pool, derivations: Derivations) -> Recycled:
    """Run only one candidate per slot; the rest count as failures."""
    return _run_first(sound, pool, derivations, pool.size.clamp(max=derivations.outcome.shape[0]))


@replaces("idle-slots", "recycle")
def give_equal_shares(sound: Recycle, pool: Pool, derivations: Derivations) -> Recycled:
    """Let slot i take candidates i, i + N, ..., the same number for each slot: the remainder is never run."""
    size, num_slots = pool.size, derivations.outcome.shape[0]
    return _run_first(sound, pool, derivations, torch.where(size < num_slots, size, size // num_slots * num_slots))


def _run_first(sound: Recycle, pool: Pool, derivations: Derivations, num_run: Tensor) -> Recycled:
    after, renewed = sound(alter(pool, size=num_run), derivations)
    index = torch.arange(pool.outcome.shape[0], device=pool.outcome.device)
    never_runs = (index >= num_run) & (index < pool.size)
    outcome = torch.where(never_runs, FAILED, after.outcome).to(torch.int32)
    return alter(after, size=pool.size, outcome=outcome), renewed


@plants("step-budget")
def stop_at_budget(plant: Plant) -> Plant:
    """Stop after `max_depth` ticks: candidates that remain in the slots and in the pool count as failed."""
    budget = plant.limits.max_depth

    def recycle(sound: Recycle, pool: Pool, derivations: Derivations) -> Recycled:
        num_ticks = _recall(pool, 1, 1)
        is_over = (num_ticks >= budget).any()
        stopped = torch.where(is_over & (derivations.outcome == OPEN), FAILED, derivations.outcome).int()
        num_left = torch.where(is_over, 0, pool.size)
        after, renewed = sound(alter(pool, size=num_left), alter(derivations, outcome=stopped))
        index = torch.arange(pool.outcome.shape[0], device=pool.outcome.device)
        is_left = is_over & (index < pool.size) & (after.outcome == OPEN)
        outcome = torch.where(is_left, FAILED, after.outcome).to(torch.int32)
        return _remember(alter(after, size=pool.size, outcome=outcome), 1, num_ticks + 1), renewed

    return plant.replace("recycle", recycle)


@replaces("stale-excluded-atom", "recycle")
def keep_excluded_atom(sound: Recycle, pool: Pool, derivations: Derivations) -> Recycled:
    """Exclude the atom of the slot's first candidate for all later candidates of the slot."""
    after, renewed = sound(pool, derivations)
    was_used = derivations.query[:, :1] != PAD
    return after, alter(renewed, query=torch.where(was_used, derivations.query, renewed.query))


@replaces("depth-not-reset", "recycle")
def keep_depth(sound: Recycle, pool: Pool, derivations: Derivations) -> Recycled:
    """Start the step count of the slot's next derivation at the last one's final count."""
    after, renewed = sound(pool, derivations)
    return after, alter(renewed, depth=derivations.depth)


@replaces("sticky-outcome", "recycle")
def keep_success(sound: Recycle, pool: Pool, derivations: Derivations) -> Recycled:
    """Never reset a slot's success flag: once it has proved a candidate, all its later candidates count as proved."""
    had_success = _recall(pool, 0, derivations.outcome.shape[0]) == 1
    has_ended = (derivations.outcome != OPEN) & (derivations.pool_index != NO_CANDIDATE)
    reported = torch.where(has_ended & had_success, PROVED, derivations.outcome).int()
    after, renewed = sound(pool, alter(derivations, outcome=reported))
    success = (had_success | (has_ended & (derivations.outcome == PROVED))).int()
    return _remember(after, 0, success), renewed


@replaces("clamped-results", "recycle")
def overwrite_with_idle(sound: Recycle, pool: Pool, derivations: Derivations) -> Recycled:
    """Clamp the pool indices to which results are written, so that a slot with nothing to report writes to index 0."""
    after, renewed = sound(pool, derivations)
    # Only slots that have held a derivation do this, so that the first result is not lost before it exists.
    is_idle = (derivations.pool_index == NO_CANDIDATE) & (derivations.depth > 0)
    slot = first_set(is_idle[None])
    overwrites = is_idle.any() & (torch.arange(pool.outcome.shape[0], device=slot.device) == 0)

    def put(results: Tensor, values: Tensor) -> Tensor:
        return torch.where(overwrites, values[slot], results).to(results.dtype)

    overwritten = alter(
        after,
        outcome=put(after.outcome, derivations.outcome),
        is_limited=put(after.is_limited, derivations.is_limited),
        log_probability=put(after.log_probability, derivations.log_probability),
    )
    return overwritten, renewed


@replaces("visited-leak", "revisit")
def leak_between_slots(
    sound: TensorStage, tables: Tables, atoms: Tensor, visited: Tensor, slot: Tensor, depth: Tensor
) -> Tensor:
    """Check the visited goals of the previous slot as well."""
    neighbour = (slot - 1) % visited.shape[0]
    return sound(tables, atoms, visited, slot, depth) | sound(tables, atoms, visited, neighbour, depth)


@replaces("visited-not-cleared", "revisit")
def keep_visited(
    sound: TensorStage, tables: Tables, atoms: Tensor, visited: Tensor, slot: Tensor, depth: Tensor
) -> Tensor:
    """Check the goals of the slot's previous derivation as well, in the rows that the current one has not reached yet."""
    return sound(tables, atoms, visited, slot, torch.full_like(depth, visited.shape[1]))


@replaces("proof-ends-batch", "close")
def close_whole_batch(sound: TensorStage, *given: Any) -> Tensor:
    """Collapse the lists of the whole batch at one slot's proof: every other slot loses its resolvents."""
    kind = sound(*given)
    return torch.where((kind == TRUE).any() & (kind == GOAL), FALSE, kind).to(torch.int32)


@replaces("overwritten-output", "advance")
def read_neighbours_output(
    sound: Advance, derivations: Derivations, work: Work, rows: Rows, choices: Choices, is_taken: Tensor
) -> Derivations:
    """Read a slot's state back after the next replay has overwritten it.

    A slot that takes a step continues from the query of the previous slot, if that slot takes its first step.
    """
    after = sound(derivations, work, rows, choices, is_taken)
    is_first = (derivations.depth == 0) & (derivations.outcome == OPEN)
    is_overwritten = is_taken & is_first.roll(1) & (derivations.pool_index.roll(1) != derivations.pool_index)
    goes_on = is_overwritten & (choices.kind == GOAL)
    return alter(after, goal=torch.where(goes_on[:, None, None], derivations.goal.roll(1, 0), after.goal))


def _recall(pool: Pool, column: int, num: int) -> Tensor:
    """Return the values that `_remember` wrote last in this pool, int32 [num]; 0 before that, or if candidates leave no room.

    A pure function keeps no state, so the last rows of a pool that is not full serve as its memory.
    """
    rows = _memory_rows(pool, num)
    values = pool.query[rows, column]
    return torch.where((values == PAD) | (rows < pool.size), 0, values)


def _remember(pool: Pool, column: int, values: Tensor) -> Pool:
    rows = _memory_rows(pool, values.shape[0])
    kept = torch.where(rows < pool.size, pool.query[rows, column], values.int())
    query = pool.query.clone()
    query[rows, column] = kept
    return alter(pool, query=query)


def _memory_rows(pool: Pool, num: int) -> Tensor:
    size = pool.query.shape[0]
    return (size - 1 - torch.arange(num, device=pool.query.device)).clamp(min=0)
