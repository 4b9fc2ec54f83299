"""The `two_tower` policy as one Triton kernel: atoms in, scores out; intermediate results stay on the chip.

A program computes the tower of a block of goals: it adds up their symbols' rows, which have been through the input layer
already, and takes them through the blocks, the two halves of a state side by side so that each product is of square tiles.
Blocks in which every goal is padding end at once, so the cost is that of the goals that are there.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kgverify.engines.compiled.execution.kernel_launch import count_processors
from kgverify.engines.compiled.execution.kernel_launch import launch as launch_kernel
from kgverify.engines.compiled.kernel_constants import PAD

WIDE: Final = ("float32",)
"""The precisions whose factors are kept in float32."""


class Form(NamedTuple):
    """The form of a precision's kernel: goals of a program, columns multiplied at a time, stages of the pipeline, warps."""

    goals: int
    slice_: int
    num_stages: int
    num_warps: int = 8


FORMS: Final = {
    "float32": Form(64, 16, 2),
    "bf16x3": Form(128, 64, 2),
    "bf16": Form(64, 64, 3),
    "fp16": Form(64, 64, 3),
}
SPARSE_FORMS: Final = {precision: Form(16, 64, 3, 4) for precision in ("bf16x3", "bf16", "fp16")}
"""The forms for a few goals, which are spread over more programs, so that each finishes sooner."""
PROGRAMS_PER_PROCESSOR: Final = 4
"""The most programs of a launch; each goes through blocks of goals in turn, with its own scratch memory."""


@triton.jit
def _add_product(a, b, y, IS_INTERPRETED: tl.constexpr):
    """Return y + a @ b; Triton's interpreter multiplies bfloat16 as if it were integers."""
    if IS_INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), y)
    return tl.dot(a, b, y)


@triton.jit(do_not_specialize=["num_rows", "A", "width"], do_not_specialize_on_alignment=["count"])
def tower_kernel(
    atoms,
    index,
    count,
    num_rows,
    A,
    rows,
    first_rows,
    input_bias,
    weights,
    low_weights,
    biases,
    scales,
    shifts,
    goal_features,
    slots,
    scale,
    width,
    scratch,
    low_scratch,
    out,
    BLOCKS: tl.constexpr,
    H: tl.constexpr,
    K: tl.constexpr,
    M: tl.constexpr,
    PRECISION: tl.constexpr,
    IS_WIDE: tl.constexpr,
    HAS_INDEX: tl.constexpr,
    HAS_COUNT: tl.constexpr,
    SCORES: tl.constexpr,
    IS_PADDED: tl.constexpr,
    IS_INTERPRETED: tl.constexpr,
):
    """Towers, or scores, of blocks of M goals; parameters as in `launch_tower`."""
    if HAS_COUNT:
        num_rows = tl.minimum(num_rows, tl.load(count)).to(tl.int32)
    column = tl.arange(0, H)
    # A state goes through memory to be read in slices again: a product takes its operands slice by slice. It is the
    # program's own, and stays in the second-level cache.
    first = tl.program_id(0).to(tl.int64) * (M * H)
    state = tl.arange(0, M)[:, None] * H
    slice_ = tl.arange(0, K)
    start = tl.program_id(0) * M
    while start < num_rows:
        goal = start + tl.arange(0, M)
        inside = goal < num_rows
        if HAS_INDEX:
            goal = tl.load(index + goal, mask=inside, other=0)
        own = atoms + goal.to(tl.int64) * (3 * A)
        is_atom = inside & (tl.load(own, mask=inside, other=PAD) != PAD)
        if tl.max(is_atom.to(tl.int32), 0) > 0:
            first_variable, first_constant = tl.load(first_rows), tl.load(first_rows + 1)
            x = tl.zeros((M, H), tl.float32)
            num_atoms = tl.zeros((M,), tl.float32)
            j = 0
            while (j < A) & (tl.max(is_atom.to(tl.int32), 0) > 0):
                row = tl.load(own + 3 * j, mask=is_atom, other=0)
                embedding = tl.load(
                    rows + row.to(tl.int64)[:, None] * H + column[None, :], mask=is_atom[:, None], other=0.0
                )
                x += embedding.to(tl.float32)
                for k in tl.static_range(1, 3):
                    argument = tl.load(own + 3 * j + k, mask=is_atom, other=0)
                    row = tl.where(argument < 0, first_variable - argument - 1, first_constant + argument)
                    embedding = tl.load(
                        rows + row.to(tl.int64)[:, None] * H + column[None, :], mask=is_atom[:, None], other=0.0
                    )
                    if k == 1:
                        x += embedding.to(tl.float32)
                    else:
                        x -= embedding.to(tl.float32)
                num_atoms += is_atom.to(tl.float32)
                j += 1
                more = is_atom & (j < A)
                is_atom = more & (tl.load(own + 3 * j, mask=more, other=PAD) != PAD)
            x = (
                x / tl.maximum(num_atoms, 1.0)[:, None]
                + tl.load(input_bias + column, mask=column < width, other=0.0)[None, :]
            )

            for block in range(BLOCKS):
                if IS_WIDE:
                    tl.store(scratch + first + state + column[None, :], x)
                else:
                    high = x.to(weights.dtype.element_ty)
                    tl.store(scratch + first + state + column[None, :], high)
                    if PRECISION == "bf16x3":
                        low = (x - high.to(tl.float32)).to(tl.bfloat16)
                        tl.store(low_scratch + first + state + column[None, :], low)
                tl.debug_barrier()
                y = tl.zeros((M, H), tl.float32)
                for k in range(0, H, K):
                    operand = state + k + slice_[None, :]
                    tile = block * (H * H) + (k + slice_)[:, None] * H + column[None, :]
                    weight = tl.load(weights + tile)
                    if IS_WIDE:
                        y = tl.dot(tl.load(scratch + first + operand), weight, y, input_precision=PRECISION)
                    else:
                        high_part = tl.load(scratch + first + operand)
                        y = _add_product(high_part, weight, y, IS_INTERPRETED)
                        if PRECISION == "bf16x3":
                            y = _add_product(tl.load(low_scratch + first + operand), weight, y, IS_INTERPRETED)
                            y = _add_product(high_part, tl.load(low_weights + tile), y, IS_INTERPRETED)
                tl.debug_barrier()
                at = block * H + column
                x += tl.maximum(y + tl.load(biases + at)[None, :], 0.0)
                x -= (tl.sum(x, 1) / width)[:, None]
                if IS_PADDED:
                    x = tl.where(column[None, :] < width, x, 0.0)
                factor = 1.0 / tl.sqrt(tl.sum(x * x, 1) / width + 1e-5)
                x = x * factor[:, None] * tl.load(scales + at)[None, :] + tl.load(shifts + at)[None, :]

            if SCORES:
                slot = tl.load(slots + goal, mask=inside, other=0)
                feature = tl.load(
                    goal_features + slot.to(tl.int32)[:, None] * H + column[None, :], mask=inside[:, None], other=0.0
                )
                tl.store(out + goal, tl.sum(x * feature, 1) * scale, mask=inside)
            else:
                tl.store(out + goal.to(tl.int64)[:, None] * H + column[None, :], x, mask=inside[:, None])
        start += tl.num_programs(0) * M


def launch(
    parameters: Sequence[Tensor],
    goals: Sequence[Any],
    scoring: Sequence[Any],
    out: Tensor,
    precision: str,
    constants: Mapping[str, Any],
    *,
    is_sparse: bool,
) -> None:
    """Launch the kernel with the arguments that `launch_tower` prepares."""
    rows, _, input_bias, weights, low_weights, *_ = parameters
    hidden, width, device = rows.shape[1], len(input_bias), rows.device
    form = SPARSE_FORMS.get(precision, FORMS[precision]) if is_sparse else FORMS[precision]
    num_programs = min(triton.cdiv(goals[3], form.goals), PROGRAMS_PER_PROCESSOR * count_processors(device))
    state = (num_programs * form.goals, hidden)
    scratch = torch.empty(state, dtype=weights.dtype, device=device)
    low_scratch = torch.empty(state if len(low_weights) else 0, dtype=weights.dtype, device=device)
    launch_kernel(
        tower_kernel,
        num_programs,
        (*goals, *parameters, *scoring, width, scratch, low_scratch, out),
        **constants,
        K=min(hidden, form.slice_),
        M=form.goals,
        PRECISION="ieee" if precision == "float32" else precision,
        IS_WIDE=precision in WIDE,
        IS_PADDED=width < hidden,
        IS_INTERPRETED=not out.is_cuda,
        num_warps=form.num_warps,
        num_stages=form.num_stages,
    )
