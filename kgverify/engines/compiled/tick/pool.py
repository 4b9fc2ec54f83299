"""The batch machinery around the steps (`recycle`): candidates wait in a pool, ended slots take the next one."""

import torch
from torch import Tensor

from kgverify.engines.compiled.stages.resolve import rename
from kgverify.engines.compiled.state import NO_CANDIDATE, OPEN, PAD, PROVED, Derivations, Layout, Pool, Work


def empty_derivations(layout: Layout, max_depth: int, device: torch.device) -> Derivations:
    """Slots that hold nothing."""
    b, a = layout.slots, layout.atoms

    def full(shape: tuple[int, ...], value: int, dtype: torch.dtype) -> Tensor:
        return torch.full(shape, value, dtype=dtype, device=device)

    return Derivations(
        place=full((b,), NO_CANDIDATE, torch.int64),
        query=full((b, 3), PAD, torch.int32),
        goal=full((b, a, 3), PAD, torch.int32),
        depth=full((b,), 0, torch.int32),
        outcome=full((b,), PROVED, torch.int32),
        is_limited=full((b,), 0, torch.bool),
        log_probability=full((b,), 0, torch.float64),
        visited=full((b, max_depth, a, 3), PAD, torch.int32),
    )


def empty_work(layout: Layout, device: torch.device) -> Work:
    """No step begun in any slot."""
    b, rows = layout.slots, layout.resolvents + 1

    def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    return Work(
        cursor=zeros(b),
        num_survivors=zeros(b),
        num_kept=zeros(b),
        dropped_atoms=zeros(b),
        dropped_resolvents=zeros(b),
        true_origin_kind=zeros(b, dtype=torch.int32),
        true_origin=zeros(b, dtype=torch.int32),
        origin_kind=zeros(b, rows, dtype=torch.int32),
        origin=zeros(b, rows, dtype=torch.int32),
    )


def empty_pool(layout: Layout, device: torch.device) -> Pool:
    """A pool without candidates."""
    p = layout.pool
    return Pool(
        query=torch.full((p, 3), PAD, dtype=torch.int32, device=device),
        size=torch.zeros((), dtype=torch.int64, device=device),
        next_place=torch.zeros((), dtype=torch.int64, device=device),
        outcome=torch.full((p,), OPEN, dtype=torch.int32, device=device),
        is_limited=torch.zeros(p, dtype=torch.bool, device=device),
        log_probability=torch.zeros(p, dtype=torch.float64, device=device),
    )


def recycle(pool: Pool, derivations: Derivations) -> tuple[Pool, Derivations]:
    """Store the results of ended derivations and give their slots the next candidates, by one counter for all slots."""
    has_ended = derivations.outcome != OPEN
    reports = has_ended & (derivations.place != NO_CANDIDATE)

    place = pool.next_place + has_ended.cumsum(0) - 1
    takes = has_ended & (place < pool.size)
    query = pool.query[torch.where(takes, place, 0)]
    free_rows = derivations.goal.shape[1] - 1
    goal = torch.nn.functional.pad(rename(query[:, None]), (0, 0, 0, free_rows), value=PAD)
    turns = torch.arange(derivations.visited.shape[1], device=place.device)
    begins = takes[:, None] & (turns == 0)

    def renew(fresh: Tensor | float, held: Tensor) -> Tensor:
        mask = takes.view(-1, *(1,) * (held.dim() - 1))
        return torch.where(mask, fresh, held).to(held.dtype)

    next_pool = store_results(pool, pool.next_place + takes.sum(), derivations, reports)
    return next_pool, Derivations(
        place=torch.where(takes, place, torch.where(has_ended, NO_CANDIDATE, derivations.place)),
        query=renew(query, derivations.query),
        goal=renew(goal, derivations.goal),
        depth=renew(0, derivations.depth),
        outcome=renew(OPEN, derivations.outcome),
        is_limited=derivations.is_limited & ~takes,
        log_probability=renew(0.0, derivations.log_probability),
        visited=torch.where(begins[..., None, None], goal[:, None], derivations.visited),
    )


def store_results(pool: Pool, next_place: Tensor, derivations: Derivations, reports: Tensor) -> Pool:
    """Write the results of the reporting slots, bool [B], to their places; other slots write nothing."""
    sink = pool.outcome.shape[0]
    place = torch.where(reports, derivations.place, sink)

    def put(results: Tensor, values: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(results, (0, 1))
        # The sink takes zeros alone: of several values any may be the last.
        return padded.index_put((place,), torch.where(reports, values, 0).to(values.dtype))[:-1]

    return Pool(
        query=pool.query,
        size=pool.size,
        next_place=next_place,
        outcome=put(pool.outcome, derivations.outcome),
        is_limited=put(pool.is_limited, derivations.is_limited),
        log_probability=put(pool.log_probability, derivations.log_probability),
    )
