"""Faults of the stage `limit`: what is kept of the resolvents, and where."""

from collections.abc import Callable

import torch
from torch import Tensor

from kgverify.engines.compiled.stages.resolve import Placement, count_by_slot
from kgverify.engines.compiled.state import Items, Work
from kgverify.faults.fault import Plant


def drop_at_max_atoms(plant: Plant) -> Plant:
    """Drop resolvents of exactly `max_atoms` atoms as well."""
    return _with_arguments(
        plant, lambda num_atoms, max_atoms, max_resolvents: (num_atoms, max_atoms - 1, max_resolvents)
    )


def drop_at_max_resolvents(plant: Plant) -> Plant:
    """Keep one resolvent fewer than `max_resolvents`."""
    return _with_arguments(
        plant, lambda num_atoms, max_atoms, max_resolvents: (num_atoms, max_atoms, max_resolvents - 1)
    )


def truncate(plant: Plant) -> Plant:
    """Keep resolvents of more atoms than there is room for, without the last ones."""
    return _with_arguments(
        plant, lambda num_atoms, max_atoms, max_resolvents: (num_atoms.clamp(max=max_atoms), max_atoms, max_resolvents)
    )


def _with_arguments(plant: Plant, change: Callable[[Tensor, int, int], tuple[Tensor, int, int]]) -> Plant:
    """Let `limit` go by other numbers of atoms, and by other limits, than it is given."""
    sound = plant.stages.limit

    def limit(
        is_survivor: Tensor,
        num_atoms: Tensor,
        items: Items,
        held: Tensor,
        work: Work,
        max_atoms: int,
        max_resolvents: int,
    ) -> Placement:
        given, most_atoms, most_resolvents = change(num_atoms, max_atoms, max_resolvents)
        return sound(is_survivor, given, items, held, work, most_atoms, most_resolvents)

    return plant.with_stages(limit=limit)


def put_facts_first(plant: Plant) -> Plant:
    """List what facts gave before what rules gave, within each window of clauses."""
    sound = plant.stages.limit

    def limit(
        is_survivor: Tensor,
        num_atoms: Tensor,
        items: Items,
        held: Tensor,
        work: Work,
        max_atoms: int,
        max_resolvents: int,
    ) -> Placement:
        placement = sound(is_survivor, num_atoms, items, held, work, max_atoms, max_resolvents)
        by_fact = placement.is_kept & ~items.is_rule
        by_rule = placement.is_kept & items.is_rule
        num_by_fact, num_by_rule = count_by_slot(by_fact, held), count_by_slot(by_rule, held)

        def rank(mask: Tensor, count: Tensor) -> Tensor:
            return mask.cumsum(0) - 1 - (count.cumsum(0) - count)[items.slot]

        after_facts = num_by_fact[items.slot] + rank(by_rule, num_by_rule)
        row = work.num_kept[items.slot] + torch.where(items.is_rule, after_facts, rank(by_fact, num_by_fact))
        return Placement(
            placement.is_kept, row, placement.num_kept, placement.dropped_atoms, placement.dropped_resolvents
        )

    return plant.with_stages(limit=limit)
