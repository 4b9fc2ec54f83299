"""The input layer of the `two_tower` policy as a separate kernel: the sum of the rows of a goal's symbols.

These rows are scattered in memory. Many concurrent programs hide the wait for them better than the few that multiply
matrices.
"""

from collections.abc import Sequence
from typing import Any, Final

import triton
import triton.language as tl
from torch import Tensor

from kgverify.prover.execution.device import count_processors
from kgverify.prover.execution.device import launch as launch_kernel
from kgverify.prover.kernel_constants import PAD

PROGRAMS_PER_PROCESSOR: Final = 64
GOALS: Final = 4
"""The number of goals that a program of one warp takes at a time."""


@triton.jit
def _load_atom(atom, mask):
    """Return the predicate and the arguments of an atom in each lane."""
    predicate = tl.load(atom, mask=mask, other=0)
    return predicate, tl.load(atom + 1, mask=mask, other=0), tl.load(atom + 2, mask=mask, other=0)


@triton.jit(do_not_specialize=["num_rows", "A", "width"], do_not_specialize_on_alignment=["count"])
def embed_kernel(
    atoms,
    index,
    count,
    num_rows,
    A,
    rows,
    first_rows,
    input_bias,
    out,
    width,
    H: tl.constexpr,
    M: tl.constexpr,
    ATOMS: tl.constexpr,
    HAS_INDEX: tl.constexpr,
    HAS_COUNT: tl.constexpr,
):
    """Write the input layer's output for each goal, in the order of the index; parameters as in `launch_tower`."""
    if HAS_COUNT:
        num_rows = tl.minimum(num_rows, tl.load(count)).to(tl.int32)
    column = tl.arange(0, H)
    first_variable, first_constant = tl.load(first_rows), tl.load(first_rows + 1)
    bias = tl.load(input_bias + column, mask=column < width, other=0.0)
    start = tl.program_id(0) * M
    while start < num_rows:
        place = start + tl.arange(0, M)
        inside = place < num_rows
        goal = place
        if HAS_INDEX:
            goal = tl.load(index + place, mask=inside, other=0)
        own = atoms + goal.to(tl.int64) * (3 * A)
        at = tl.arange(0, ATOMS)
        predicates = tl.load(own[:, None] + 3 * at[None, :], mask=inside[:, None] & (at < A)[None, :], other=PAD)
        num_atoms = tl.sum((predicates != PAD).to(tl.int32), 1)
        most = tl.max(num_atoms, 0)
        x = tl.zeros((M, H), tl.float32)
        j = 0
        predicate, first, second = _load_atom(own, num_atoms > 0)
        while j < most:
            is_atom = j < num_atoms
            # The next atom is loaded while the rows of this one are loaded.
            own += 3
            next_predicate, next_first, next_second = _load_atom(own, j + 1 < num_atoms)
            first = tl.where(first < 0, first_variable - first - 1, first_constant + first)
            second = tl.where(second < 0, first_variable - second - 1, first_constant + second)
            mask = is_atom[:, None]
            x += tl.load(rows + (predicate.to(tl.int64) * H)[:, None] + column[None, :], mask=mask, other=0.0)
            x += tl.load(rows + (first.to(tl.int64) * H)[:, None] + column[None, :], mask=mask, other=0.0)
            x -= tl.load(rows + (second.to(tl.int64) * H)[:, None] + column[None, :], mask=mask, other=0.0)
            predicate, first, second = next_predicate, next_first, next_second
            j += 1
        x = x / tl.maximum(num_atoms, 1).to(tl.float32)[:, None] + bias[None, :]
        own = (place.to(tl.int64) * H)[:, None] + column[None, :]
        tl.store(out + own, x.to(out.dtype.element_ty), mask=inside[:, None])
        start += tl.num_programs(0) * M


def launch(
    parameters: Sequence[Tensor], goals: Sequence[Any], out: Tensor, *, has_index: bool, has_count: bool
) -> None:
    """Launch the kernel with the arguments that `launch_tower` prepares.

    out: [n, p]  the outputs, rounded to its type
    """
    rows, first_rows, input_bias, *_ = parameters
    num_programs = min(triton.cdiv(goals[3], GOALS), PROGRAMS_PER_PROCESSOR * count_processors(rows.device))
    launch_kernel(
        embed_kernel,
        num_programs,
        (*goals, rows, first_rows, input_bias, out),
        (len(input_bias),),
        H=rows.shape[1],
        M=GOALS,
        ATOMS=triton.next_power_of_2(goals[4]),
        HAS_INDEX=has_index,
        HAS_COUNT=has_count,
        num_warps=1,
    )
