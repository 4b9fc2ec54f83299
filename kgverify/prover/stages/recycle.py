"""The batch machinery around the steps (`recycle`): candidates wait in a pool, ended slots take the next one."""

import torch
from torch import Tensor

from kgverify.prover.stages.resolve import rename
from kgverify.prover.state import NO_CANDIDATE, OPEN, PAD, Derivations, Pool, alter


def recycle(pool: Pool, derivations: Derivations) -> tuple[Pool, Derivations]:
    """Store the results of ended derivations and give their slots the next candidates, counted over all slots."""
    has_ended = derivations.outcome != OPEN
    reports = has_ended & (derivations.pool_index != NO_CANDIDATE)

    pool_index = pool.next_index + has_ended.cumsum(0) - 1
    takes = has_ended & (pool_index < pool.size)
    query = pool.query[torch.where(takes, pool_index, 0)]
    free_rows = derivations.goal.shape[1] - 1
    goal = torch.nn.functional.pad(rename(query[:, None]), (0, 0, 0, free_rows), value=PAD)
    turns = torch.arange(derivations.visited.shape[1], device=pool_index.device)
    begins = takes[:, None] & (turns == 0)

    def renew(fresh: Tensor | float, held: Tensor) -> Tensor:
        mask = takes.view(-1, *(1,) * (held.dim() - 1))
        return torch.where(mask, fresh, held).to(held.dtype)

    next_pool = store_results(pool, pool.next_index + takes.sum(), derivations, reports)
    return next_pool, Derivations(
        pool_index=torch.where(takes, pool_index, torch.where(has_ended, NO_CANDIDATE, derivations.pool_index)),
        query=renew(query, derivations.query),
        goal=renew(goal, derivations.goal),
        depth=renew(0, derivations.depth),
        outcome=renew(OPEN, derivations.outcome),
        is_limited=derivations.is_limited & ~takes,
        log_probability=renew(0.0, derivations.log_probability),
        visited=torch.where(begins[..., None, None], goal[:, None], derivations.visited),
    )


def store_results(pool: Pool, next_index: Tensor, derivations: Derivations, reports: Tensor) -> Pool:
    """Write the results of the reporting slots, bool [B], to their pool indices; other slots write nothing."""
    sink = pool.outcome.shape[0]
    pool_index = torch.where(reports, derivations.pool_index, sink)

    def put(results: Tensor, values: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(results, (0, 1))
        # Only zeros are written to the sink, since any of several values might be the last one.
        return padded.index_put((pool_index,), torch.where(reports, values, 0).to(values.dtype))[:-1]

    return alter(
        pool,
        next_index=next_index,
        outcome=put(pool.outcome, derivations.outcome),
        is_limited=put(pool.is_limited, derivations.is_limited),
        log_probability=put(pool.log_probability, derivations.log_probability),
    )
