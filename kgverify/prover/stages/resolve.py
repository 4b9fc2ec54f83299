"""Stages `resolve`, `prune`, `rename`, `revisit`, `close` and `limit`: from matched clauses to resolvents."""

from typing import NamedTuple

import torch
from torch import Tensor

from kgverify.prover.program.tables import Tables
from kgverify.prover.stages.match import apply_bindings, bindings, standardize_apart
from kgverify.prover.state import FALSE, GOAL, PAD, TRUE, Items, Work


class Placement(NamedTuple):
    """The items of a window that `limit` keeps.

    is_kept: bool [C]
    row:     int64 [C]  its index among the slot's resolvents, if kept
    num_kept, dropped_atoms, dropped_resolvents: int64 [B]  per slot, in this window
    """

    is_kept: Tensor
    row: Tensor
    num_kept: Tensor
    dropped_atoms: Tensor
    dropped_resolvents: Tensor


def resolve(tables: Tables, items: Items, head: Tensor, goal: Tensor, variable_offset: int) -> Tensor:
    """Apply the unifier to the body and the rest of the goal, int32 [C, A, 3]: int32 [C, L, 3].

    Free rows are PAD, in any place.
    """
    no_body = tables.rule_body.shape[0] - 1
    body = standardize_apart(tables.rule_body[torch.where(items.is_rule, items.clause, no_body)], variable_offset)
    atoms = torch.cat((body, goal[:, 1:]), dim=1)
    _, x1, t1, x2, t2 = bindings(head, items.selected)
    return torch.cat((atoms[..., :1], apply_bindings(atoms[..., 1:], x1, t1, x2, t2)), dim=-1)


def is_fact(tables: Tables, atoms: Tensor) -> Tensor:
    """Return whether each atom, int32 [..., 3], is a ground atom of the facts, bool [...]."""
    predicate, first, second = atoms.long().unbind(-1)
    is_ground = (predicate >= 0) & (first >= 0) & (second >= 0)
    key = torch.where(is_ground, (predicate * tables.num_constants + first) * tables.num_constants + second, -1)
    index = torch.searchsorted(tables.fact_keys, key).clamp(max=tables.fact_keys.shape[0] - 1)
    return is_ground & (tables.fact_keys[index] == key)


def prune(tables: Tables, atoms: Tensor, query: Tensor, exclude_query: bool) -> tuple[Tensor, Tensor]:
    """Delete the atoms that are facts, except the excluded one, and close the gaps.

    int32 [C, L, 3], int32 [C, 3] -> int32 [C, L, 3] left-aligned, free rows PAD, and the number of atoms left, int64
    [C].
    """
    is_deleted = is_fact(tables, atoms)
    if exclude_query:
        is_deleted = is_deleted & ~(atoms == query[:, None]).all(-1)
    is_left = (atoms[..., 0] != PAD) & ~is_deleted
    return left_align(atoms, is_left), is_left.sum(1)


def left_align(atoms: Tensor, is_left: Tensor) -> Tensor:
    """Move the atoms that are left to the front, in order; the rest becomes PAD."""
    length = atoms.shape[1]
    rank = is_left.cumsum(1) - 1
    position = torch.arange(length, device=atoms.device)
    # The atom that goes to position j is the one whose rank is j.
    goes_here = is_left[:, None, :] & (rank[:, None, :] == position[:, None])
    source = first_set(goes_here)
    aligned = atoms.gather(1, source[..., None].expand(-1, -1, 3))
    return torch.where((position < is_left.sum(1)[:, None])[..., None], aligned, PAD)


def first_set(mask: Tensor) -> Tensor:
    """Return the first set index of the last axis, bool [..., n]: int64 [...], 0 if none is set.

    This is not an argmax: for a bool or int8 operand, Inductor's CPU code has returned indices outside the axis (torch
    2.13). It computes in int32, since eager torch takes seven times as long for a minimum of int64.
    """
    size = mask.shape[-1]
    position = torch.arange(size, device=mask.device, dtype=torch.int32)
    first = torch.where(mask, position, size).amin(-1)
    return torch.where(first < size, first, 0).clamp(0, size - 1).long()


def rename(atoms: Tensor) -> Tensor:
    """Renumber the variables of each resolvent, int32 [C, A, 3], by first appearance; PAD stays."""
    arguments = atoms[..., 1:].flatten(1)
    is_variable = (arguments < 0) & (arguments != PAD)
    is_same = (arguments[:, :, None] == arguments[:, None, :]) & is_variable[:, None, :]
    first = first_set(is_same)
    position = torch.arange(arguments.shape[1], device=atoms.device)
    appears = is_variable & (first == position)
    number = (appears.cumsum(1) - 1).gather(1, first)
    renamed = torch.where(is_variable, (-1 - number).to(torch.int32), arguments)
    return torch.cat((atoms[..., :1], renamed.view(*atoms.shape[:2], 2)), dim=-1)


def goal_hash(tables: Tables, atoms: Tensor) -> Tensor:
    """Return a multilinear hash of goals, int32 [..., A, 3] (Lemire and Kaser 2014), int64 [...]; order matters.

    The multipliers are passed as data: Inductor treats arithmetic on an `arange` as index arithmetic, in which products
    that wrap around are wrong.
    """
    return (atoms.flatten(-2).long() * tables.hash_keys).sum(-1)


def revisit(tables: Tables, atoms: Tensor, visited: Tensor, slot: Tensor, depth: Tensor) -> Tensor:
    """Return whether a resolvent, int32 [C, A, 3], equals a goal that its derivation has visited, bool [C].

    visited int32 [B, D, A, 3], slot int64 [C], depth int32 [B]. The hash finds the only goal that can be equal; the
    comparison of atoms decides.
    """
    turns = torch.arange(visited.shape[1], device=atoms.device)
    visited_hash = goal_hash(tables, visited)[slot]
    is_candidate = (visited_hash == goal_hash(tables, atoms)[:, None]) & (turns <= depth[slot][:, None])
    turn = first_set(is_candidate)
    return is_candidate.any(1) & (visited[slot, turn] == atoms).flatten(1).all(1)


def close(num_survivors: Tensor, true_origin_kind: Tensor, num_kept: Tensor) -> Tensor:
    """Return TRUE or FALSE if it is the only resolvent, else GOAL: int32 [B].

    num_survivors and num_kept, int64 [B], count the resolvents other than TRUE before and after `limit`; a nonzero
    true_origin_kind, int32 [B], means that some resolvent is TRUE.
    """
    has_none = (num_survivors == 0) | (num_kept == 0)
    return torch.where(true_origin_kind != 0, TRUE, torch.where(has_none, FALSE, GOAL)).to(torch.int32)


def limit(
    is_survivor: Tensor,
    num_atoms: Tensor,
    items: Items,
    held: Tensor,
    work: Work,
    max_atoms: int,
    max_resolvents: int,
) -> Placement:
    """Keep the first `max_resolvents` resolvents of the step among those with at most `max_atoms` atoms.

    is_survivor bool [C], num_atoms int64 [C]; held int64 [B] counts the items of each slot in this window.
    """
    fits = is_survivor & (num_atoms <= max_atoms)
    num_fitting = count_by_slot(fits, held)
    row = fits.cumsum(0) - 1 - (num_fitting.cumsum(0) - num_fitting)[items.slot] + work.num_kept[items.slot]
    is_kept = fits & (row < max_resolvents)
    num_kept = count_by_slot(is_kept, held)
    return Placement(is_kept, row, num_kept, count_by_slot(is_survivor & ~fits, held), num_fitting - num_kept)


def count_by_slot(mask: Tensor, held: Tensor) -> Tensor:
    """Count the items of each slot that are set, int64 [B]; the items of a slot are adjacent."""
    total = torch.nn.functional.pad(mask.cumsum(0), (1, 0))
    ends = held.cumsum(0)
    return total[ends] - total[ends - held]


def first_by_slot(mask: Tensor, held: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first item of each slot that is set, int64 [B] (0 if none is set), and whether it exists, bool [B]."""
    total = mask.cumsum(0)
    ends = held.cumsum(0)
    before = torch.nn.functional.pad(total, (1, 0))[ends - held]
    item = torch.searchsorted(total, before + 1)
    has_one = item < ends
    return torch.where(has_one, item, 0), has_one
