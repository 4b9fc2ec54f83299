"""The item kernels as operators of torch, so that they are part of what is compiled."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
import triton
from torch import Tensor

from kgverify.engines.compiled.item_kernels import MOST_ATOMS, MOST_VARIABLES, form_atoms_kernel, try_items_kernel
from kgverify.engines.compiled.kernels import Kernels
from kgverify.engines.compiled.resolve import goal_hash
from kgverify.engines.compiled.state import PAD, Derivations, Items
from kgverify.engines.compiled.tables import Tables

if TYPE_CHECKING:
    from kgverify.engines.compiled.tick import Setting

BLOCK: Final = 128
"""Items of a program."""


def launch_try_items(
    kernel: Any,
    items: Sequence[Tensor],
    derivations: Sequence[Tensor],
    tables: Sequence[Tensor],
    exclude_query: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run the kernel; one that `wrap_triton` made of it is one as well.

    items:       slot, is_live, is_rule, clause
    derivations: goal, query, visited, hashes of visited int64 [B, D], depth
    tables:      those of `_program_of`, hash_keys, the hash of a goal without atoms int64 []
    """
    num, goal = len(items[0]), derivations[0]
    matches = torch.empty(num, dtype=torch.int8, device=goal.device)
    num_atoms = torch.empty(num, dtype=torch.int32, device=goal.device)
    is_new = torch.empty(num, dtype=torch.int8, device=goal.device)
    kernel[(triton.cdiv(num, BLOCK),)](
        *items,
        num,
        *derivations,
        *tables,
        matches,
        num_atoms,
        is_new,
        A=goal.shape[1],
        BODY=tables[2].shape[1],
        DEPTH=derivations[2].shape[1],
        EXCLUDE=exclude_query,
        BLOCK=BLOCK,
    )
    return matches, num_atoms, is_new


def launch_form_atoms(
    kernel: Any,
    items: Sequence[Tensor],
    derivations: Sequence[Tensor],
    tables: Sequence[Tensor],
    exclude_query: bool,
) -> Tensor:
    """As `launch_try_items`; of the derivations goal and query, of the tables all but the hash keys."""
    num, goal = len(items[0]), derivations[0]
    atoms = torch.empty((num, *goal.shape[1:]), dtype=torch.int32, device=goal.device)
    kernel[(triton.cdiv(num, BLOCK),)](
        *items,
        num,
        *derivations,
        *tables,
        atoms,
        A=goal.shape[1],
        BODY=tables[2].shape[1],
        EXCLUDE=exclude_query,
        BLOCK=BLOCK,
    )
    return atoms


def _try_items(
    items: Sequence[Tensor], derivations: Sequence[Tensor], tables: Sequence[Tensor], exclude_query: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return launch_try_items(try_items_kernel, items, derivations, tables, exclude_query)


@torch.library.triton_op("kgverify::try_items", mutates_args=())
def _try_items_op(
    items: Sequence[Tensor], derivations: Sequence[Tensor], tables: Sequence[Tensor], exclude_query: bool
) -> tuple[Tensor, Tensor, Tensor]:
    kernel = torch.library.wrap_triton(try_items_kernel)
    return launch_try_items(kernel, items, derivations, tables, exclude_query)


def _form_atoms(
    items: Sequence[Tensor], derivations: Sequence[Tensor], tables: Sequence[Tensor], exclude_query: bool
) -> Tensor:
    return launch_form_atoms(form_atoms_kernel, items, derivations, tables, exclude_query)


@torch.library.triton_op("kgverify::form_atoms", mutates_args=())
def _form_atoms_op(
    items: Sequence[Tensor], derivations: Sequence[Tensor], tables: Sequence[Tensor], exclude_query: bool
) -> Tensor:
    kernel = torch.library.wrap_triton(form_atoms_kernel)
    return launch_form_atoms(kernel, items, derivations, tables, exclude_query)


def can_run(num_atoms: int, most_variables: int) -> bool:
    """Whether goals padded to `num_atoms`, and clauses of so many variables, are small enough for the kernels."""
    return num_atoms <= MOST_ATOMS and 2 * num_atoms + most_variables <= MOST_VARIABLES


def build_item_kernels(exclude_query: bool) -> Kernels:
    """The kernels, whatever the program; on a CPU they run in Triton's interpreter, if that is switched on."""

    def try_items(
        setting: "Setting", tables: Tables, derivations: Derivations, items: Items
    ) -> tuple[Tensor, Tensor, Tensor]:
        state = [
            derivations.goal,
            derivations.query,
            derivations.visited,
            goal_hash(tables, derivations.visited),
            derivations.depth,
        ]
        pad_hash = (tables.hash_keys * PAD).sum()
        program = [*_program_of(tables), tables.hash_keys, pad_hash]
        run = _try_items_op if items.slot.is_cuda else _try_items
        matches, num_atoms, is_new = run(_rows_of(items), state, program, exclude_query)
        return matches != 0, num_atoms, is_new != 0

    def form_atoms(setting: "Setting", tables: Tables, derivations: Derivations, items: Items) -> Tensor:
        state = [derivations.goal, derivations.query]
        run = _form_atoms_op if items.slot.is_cuda else _form_atoms
        formed: Tensor = run(_rows_of(items), state, _program_of(tables), exclude_query)
        return formed

    return Kernels(try_items, form_atoms)


def _rows_of(items: Items) -> list[Tensor]:
    return [items.slot, items.is_live, items.is_rule, items.clause]


def _program_of(tables: Tables) -> list[Tensor]:
    return [
        tables.facts,
        tables.rule_head,
        tables.rule_body,
        tables.num_constants,
        tables.bucket_first,
        tables.bucket_keys,
        tables.bucket_shape,
    ]
