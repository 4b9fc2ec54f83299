"""Stages next to one another as one function each: what a kernel may compute at once.

The plain functions compose the stages; a kernel is tested against them, and stands in for stages that are as they are.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import torch
from torch import Tensor

from kgverify.engines.compiled import match, resolve
from kgverify.engines.compiled.match import clause_heads
from kgverify.engines.compiled.state import PAD, Derivations, Items
from kgverify.engines.compiled.tables import Tables
from kgverify.logic.limits import Limits
from kgverify.logic.program import Program

if TYPE_CHECKING:
    from kgverify.engines.compiled.stages import Stages
    from kgverify.engines.compiled.tick import Setting

TryItems: TypeAlias = Callable[["Setting", Tables, Derivations, Items], tuple[Tensor, Tensor, Tensor]]
FormAtoms: TypeAlias = Callable[["Setting", Tables, Derivations, Items], Tensor]


class Kernels(NamedTuple):
    """From `match_rules` to `revisit` at once.

    try_items:  what each clause gives: whether it matches bool [C], atoms left int64 [C], whether its resolvent is new
                bool [C]; the last two are unspecified where it does not match
    form_atoms: the resolvents of clauses that match, int32 [C, A, 3], free rows PAD; all PAD where an item is not live
    """

    try_items: TryItems
    form_atoms: FormAtoms


def try_items(
    setting: "Setting", tables: Tables, derivations: Derivations, items: Items
) -> tuple[Tensor, Tensor, Tensor]:
    """Stage by stage."""
    stages, exclude_query = setting.stages, setting.limits.exclude_query
    head = clause_heads(tables, items, 2 * setting.layout.atoms)
    matches = torch.where(
        items.is_rule,
        stages.match_rules(tables, items, head),
        stages.match_facts(tables, items, head, exclude_query),
    )
    atoms, num_atoms = _resolve(setting, tables, derivations, items, head)
    # What the padding cuts off is longer than every goal visited; the atoms that are left of it tell nothing.
    is_cut = num_atoms > setting.layout.atoms
    is_new = is_cut | ~stages.revisit(tables, atoms, derivations.visited, items.slot, derivations.depth)
    return matches, num_atoms, is_new


def form_atoms(setting: "Setting", tables: Tables, derivations: Derivations, items: Items) -> Tensor:
    """Stage by stage."""
    head = clause_heads(tables, items, 2 * setting.layout.atoms)
    atoms, _ = _resolve(setting, tables, derivations, items, head)
    return torch.where(items.is_live[:, None, None], atoms, PAD)


def _resolve(
    setting: "Setting", tables: Tables, derivations: Derivations, items: Items, head: Tensor
) -> tuple[Tensor, Tensor]:
    stages, layout = setting.stages, setting.layout
    raw = stages.resolve(tables, items, head, derivations.goal[items.slot], 2 * layout.atoms)
    pruned, num_atoms = stages.prune(tables, raw, items.query, setting.limits.exclude_query)
    return stages.rename(pruned[:, : layout.atoms]), num_atoms


_REPLACED: Final = {
    "match_rules": match.match_rules,
    "match_facts": match.match_facts,
    "resolve": resolve.resolve,
    "prune": resolve.prune,
    "rename": resolve.rename,
    "revisit": resolve.revisit,
}

PLAIN_KERNELS: Final = Kernels(try_items, form_atoms)


def choose_kernels(stages: "Stages", tables: Tables, program: Program, limits: Limits, device: torch.device) -> Kernels:
    """Triton's on CUDA, where the stages are as they are and the program's goals are short enough; else the plain ones."""
    if device.type != "cuda" or any(getattr(stages, stage) is not plain for stage, plain in _REPLACED.items()):
        return PLAIN_KERNELS
    try:
        from kgverify.engines.compiled.item_ops import build_item_kernels, can_run
    except ImportError:
        return PLAIN_KERNELS
    arguments = (term for rule in program.rules for atom in (rule.clause_head, *rule.body) for term in atom[1:])
    most_variables = -min((term for term in arguments if term < 0), default=0)
    if not can_run(len(tables.hash_keys) // 3, most_variables):
        return PLAIN_KERNELS
    return build_item_kernels(limits.exclude_query)
