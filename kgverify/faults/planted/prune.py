"""Faults of the stage `prune`, and of the proof test that depends on it."""

import torch
from torch import Tensor

from kgverify.engines.compiled.program.tables import Tables
from kgverify.engines.compiled.stages.resolve import is_fact, left_align
from kgverify.engines.compiled.state import PAD
from kgverify.faults.fault import Plant
from kgverify.faults.planted.match import match_nothing_for_padding


def prune_query(plant: Plant) -> Plant:
    """Delete the query like any other fact."""
    sound = plant.stages.prune

    def prune(tables: Tables, atoms: Tensor, query: Tensor, exclude_query: bool) -> tuple[Tensor, Tensor]:
        return sound(tables, atoms, query, False)

    return plant.with_stages(prune=prune)


def leave_gaps(plant: Plant) -> Plant:
    """Leave a gap where an atom was deleted: a goal is read up to its first gap, and one that begins with a gap is empty.

    A goal that is empty while atoms are left is not a proof: no clause matches padding.
    """
    sound = plant.stages.prune

    def prune(tables: Tables, atoms: Tensor, query: Tensor, exclude_query: bool) -> tuple[Tensor, Tensor]:
        _, num_left = sound(tables, atoms, query, exclude_query)
        is_atom = atoms[..., 0] != PAD
        is_gap = is_fact(tables, atoms)
        if exclude_query:
            is_gap = is_gap & ~(atoms == query[:, None]).all(-1)
        return left_align(atoms, is_atom & (is_gap.cumsum(1) == 0)), num_left

    return match_nothing_for_padding(plant.with_stages(prune=prune))


def end_empty_goals(plant: Plant) -> Plant:
    """Take a goal whose atoms were all deleted for one that has ended, not for one that is proved."""
    sound = plant.stages.prune

    def prune(tables: Tables, atoms: Tensor, query: Tensor, exclude_query: bool) -> tuple[Tensor, Tensor]:
        pruned, num_atoms = sound(tables, atoms, query, exclude_query)
        return pruned, torch.where((atoms[..., 0] != PAD).any(1), num_atoms.clamp(min=1), num_atoms)

    return match_nothing_for_padding(plant.with_stages(prune=prune))


def pack_keys(plant: Plant) -> Plant:
    """Pack a fact into 32 bits, 8 for each argument: constants from 256 on reach into their neighbours' bits."""
    sound = plant.stages.prune

    def pack(atoms: Tensor) -> Tensor:
        predicate, first, second = atoms.long().unbind(-1)
        return (predicate * 65536 + first * 256 + second) & 0xFFFFFFFF

    def prune(tables: Tables, atoms: Tensor, query: Tensor, exclude_query: bool) -> tuple[Tensor, Tensor]:
        keys = pack(tables.facts).sort().values
        key = pack(atoms)
        index = torch.searchsorted(keys, key).clamp(max=keys.shape[0] - 1)
        is_deleted = (atoms >= 0).all(-1) & (keys[index] == key)
        if exclude_query:
            is_deleted = is_deleted & ~(atoms == query[:, None]).all(-1)
        return sound(tables, left_align(atoms, (atoms[..., 0] != PAD) & ~is_deleted), query, exclude_query)

    return plant.with_stages(prune=prune)


def prove_by_any_atom(plant: Plant) -> Plant:
    """Take a resolvent for TRUE as soon as any of its atoms is a fact."""
    sound = plant.stages.prune

    def prune(tables: Tables, atoms: Tensor, query: Tensor, exclude_query: bool) -> tuple[Tensor, Tensor]:
        pruned, num_atoms = sound(tables, atoms, query, exclude_query)
        has_fact = num_atoms < (atoms[..., 0] != PAD).sum(1)
        return pruned, torch.where(has_fact, 0, num_atoms)

    return plant.with_stages(prune=prune)
