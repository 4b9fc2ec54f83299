"""Faults of the check for visited goals, alone (`revisit`) and across slots (`recycle`)."""

import torch
from torch import Tensor

from kgverify.engines.compiled.program.tables import Tables
from kgverify.faults.fault import Plant


def skip_check(plant: Plant) -> Plant:
    """Let derivations walk in circles."""

    def revisit(tables: Tables, atoms: Tensor, visited: Tensor, slot: Tensor, depth: Tensor) -> Tensor:
        return torch.zeros_like(slot, dtype=torch.bool)

    return plant.with_stages(revisit=revisit)


def ignore_order(plant: Plant) -> Plant:
    """Take goals of the same atoms in any order for equal: the hash is a sum over atoms, and nothing checks it."""

    def goal_hash(tables: Tables, atoms: Tensor) -> Tensor:
        of_atom = (atoms.long() * tables.hash_keys[:3]).sum(-1)
        return (of_atom * (of_atom ^ (of_atom >> 29))).sum(-1)

    def revisit(tables: Tables, atoms: Tensor, visited: Tensor, slot: Tensor, depth: Tensor) -> Tensor:
        turns = torch.arange(visited.shape[1], device=atoms.device)
        is_same = goal_hash(tables, visited)[slot] == goal_hash(tables, atoms)[:, None]
        return (is_same & (turns <= depth[slot][:, None])).any(1)

    return plant.with_stages(revisit=revisit)


def leak_between_slots(plant: Plant) -> Plant:
    """Check the goals that the slot before has visited as well."""
    sound = plant.stages.revisit

    def revisit(tables: Tables, atoms: Tensor, visited: Tensor, slot: Tensor, depth: Tensor) -> Tensor:
        neighbour = (slot - 1) % visited.shape[0]
        return sound(tables, atoms, visited, slot, depth) | sound(tables, atoms, visited, neighbour, depth)

    return plant.with_stages(revisit=revisit)


def keep_visited(plant: Plant) -> Plant:
    """Check what the slot's derivation before has visited as well: the rows that this one has not reached yet."""
    sound = plant.stages.revisit

    def revisit(tables: Tables, atoms: Tensor, visited: Tensor, slot: Tensor, depth: Tensor) -> Tensor:
        return sound(tables, atoms, visited, slot, torch.full_like(depth, visited.shape[1]))

    return plant.with_stages(revisit=revisit)
