"""Faults of the stages `resolve` and `rename`: unifiers applied wrongly, variables confused."""

import torch
from torch import Tensor

from kgverify.engines.compiled.program.tables import Tables
from kgverify.engines.compiled.stages.match import apply_bindings, bindings, standardize_apart
from kgverify.engines.compiled.state import PAD, Items
from kgverify.faults.fault import Plant


def substitute_in_wrong_order(plant: Plant) -> Plant:
    """Apply the bindings one after the other, the second one first: what the first puts in stays unresolved."""

    def resolve(tables: Tables, items: Items, head: Tensor, goal: Tensor, variable_offset: int) -> Tensor:
        no_body = tables.rule_body.shape[0] - 1
        body = tables.rule_body[torch.where(items.is_rule, items.clause, no_body)]
        atoms = torch.cat((standardize_apart(body, variable_offset), goal[:, 1:]), dim=1)
        _, x1, t1, x2, t2 = bindings(head, items.selected)
        return torch.cat((atoms[..., :1], apply_bindings(atoms[..., 1:], x2, t2, x1, t1)), dim=-1)

    return plant.with_stages(resolve=resolve)


def capture_variables(plant: Plant) -> Plant:
    """Do not standardize rules apart: their variables are numbered from 0, as the goal's are."""
    return _resolve_with_offset(plant, 0)


def overlap_variables(plant: Plant) -> Plant:
    """Standardize rules apart by one variable, whatever the goal holds."""
    return _resolve_with_offset(plant, 1)


def _resolve_with_offset(plant: Plant, offset: int) -> Plant:
    sound = plant.stages.resolve

    def resolve(tables: Tables, items: Items, head: Tensor, goal: Tensor, variable_offset: int) -> Tensor:
        is_variable = (head < 0) & (head != PAD)
        shifted = torch.where(is_variable, head + variable_offset - offset, head)
        return sound(tables, items, shifted, goal, offset)

    return plant.with_stages(resolve=resolve)


def forget_rest(plant: Plant) -> Plant:
    """Apply the unifier to the rule's body and not to the rest of the goal."""
    sound = plant.stages.resolve

    def resolve(tables: Tables, items: Items, head: Tensor, goal: Tensor, variable_offset: int) -> Tensor:
        resolvents = sound(tables, items, head, goal, variable_offset)
        return torch.cat((resolvents[:, : tables.rule_body.shape[1]], goal[:, 1:]), dim=1)

    return plant.with_stages(resolve=resolve)


def rename_by_offset(plant: Plant) -> Plant:
    """Subtract the smallest variable's number from all, modulo the variables there is room for."""

    def rename(atoms: Tensor) -> Tensor:
        arguments = atoms[..., 1:]
        is_variable = (arguments < 0) & (arguments != PAD)
        number = torch.where(is_variable, -1 - arguments, 2**30)
        smallest = number.flatten(1).amin(1)[:, None, None]
        renamed = -1 - (number - smallest) % (2 * atoms.shape[1])
        return torch.cat((atoms[..., :1], torch.where(is_variable, renamed, arguments).to(atoms.dtype)), dim=-1)

    return plant.with_stages(rename=rename)
