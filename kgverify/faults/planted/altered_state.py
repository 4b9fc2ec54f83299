"""The state of the slots and of the pool with some fields replaced.

Field by field, since on torch 2.11 a compiled function returns a chain of `_replace` with fields missing.
"""

from torch import Tensor

from kgverify.engines.compiled.state import Derivations, Pool


def alter_derivations(
    derivations: Derivations,
    *,
    query: Tensor | None = None,
    goal: Tensor | None = None,
    depth: Tensor | None = None,
    outcome: Tensor | None = None,
    log_probability: Tensor | None = None,
    visited: Tensor | None = None,
) -> Derivations:
    """Return the derivations with the given fields."""
    return Derivations(
        pool_index=derivations.pool_index,
        query=derivations.query if query is None else query,
        goal=derivations.goal if goal is None else goal,
        depth=derivations.depth if depth is None else depth,
        outcome=derivations.outcome if outcome is None else outcome,
        is_limited=derivations.is_limited,
        log_probability=derivations.log_probability if log_probability is None else log_probability,
        visited=derivations.visited if visited is None else visited,
    )


def alter_pool(
    pool: Pool,
    *,
    query: Tensor | None = None,
    size: Tensor | None = None,
    outcome: Tensor | None = None,
    is_limited: Tensor | None = None,
    log_probability: Tensor | None = None,
) -> Pool:
    """Return the pool with the given fields."""
    return Pool(
        query=pool.query if query is None else query,
        size=pool.size if size is None else size,
        next_index=pool.next_index,
        outcome=pool.outcome if outcome is None else outcome,
        is_limited=pool.is_limited if is_limited is None else is_limited,
        log_probability=pool.log_probability if log_probability is None else log_probability,
    )
