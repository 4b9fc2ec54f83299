"""The `two_tower` policy as one Triton kernel: atoms in, scores out; intermediate results stay on the chip.

A program computes the tower of a block of goals. It adds the rows of their symbols, to which the input layer has
already been applied, and takes the sums through the blocks. The two halves of a state lie side by side, so that each
product has square tiles. Blocks in which every goal is padding end at once, so only actual goals cost time.

In float64 it decides close choices. The goals then come in contests, each with its resolvents, and no launch waits for
another. Every contest executes the same instructions at any position, so its scores are always the same numbers.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kgverify.prover.execution.device import count_processors
from kgverify.prover.execution.device import launch as launch_kernel
from kgverify.prover.kernel_constants import PAD

EXACT: Final = "float64"
"""The precision of the reference, which decides close choices."""
WIDE: Final = ("float32", EXACT)
"""The precisions whose weights are kept in float32."""
CONTENDERS: Final = 3
"""The largest number of resolvents of a contest."""
CONTEST: Final = 1 + CONTENDERS
"""The number of goals of a contest: the goal of the step, and then its resolvents."""


class Form(NamedTuple):
    """The form of a precision's kernel: goals per program, columns multiplied at a time, stages of the pipeline, warps."""

    goals: int
    slice_: int
    num_stages: int
    num_warps: int = 8


FORMS: Final = {
    "float32": Form(64, 16, 2),
    "bf16x3": Form(128, 64, 2),
    "bf16": Form(64, 64, 3),
    "fp16": Form(64, 64, 3),
    EXACT: Form(16, 16, 4),
}
PROGRAMS_PER_PROCESSOR: Final = 4
"""The largest number of programs of a launch, per processor.

Each processes blocks of goals in turn, with its own scratch memory.
"""


@triton.jit
def _add_product(a, b, y, IS_INTERPRETED: tl.constexpr):
    """Return y + a @ b, although Triton's interpreter multiplies bfloat16 numbers as if they were integers."""
    if IS_INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), y)
    return tl.dot(a, b, y)


@triton.jit(do_not_specialize=["num_rows", "A", "width"], do_not_specialize_on_alignment=["count"])
def tower_kernel(
    atoms,
    resolvents,
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
    C: tl.constexpr,
    PRECISION: tl.constexpr,
    FLOAT: tl.constexpr,
    IS_WIDE: tl.constexpr,
    HAS_INDEX: tl.constexpr,
    HAS_COUNT: tl.constexpr,
    SCORES: tl.constexpr,
    IS_PADDED: tl.constexpr,
    IS_INTERPRETED: tl.constexpr,
):
    """Compute towers, or scores, of blocks of M goals; parameters as in `launch_tower`.

    FLOAT: the type of states and sums
    C:     the number of goals of a contest (parameters as in `score_contests`); 1 for single goals
    """
    if HAS_COUNT:
        num_rows = tl.minimum(num_rows, C * tl.load(count)).to(tl.int32)
    column = tl.arange(0, H)
    # A state is written to memory and read again in slices, since a product takes its operands slice by slice. The
    # memory belongs to the program, and stays in the second-level cache.
    first = tl.program_id(0).to(tl.int64) * (M * H)
    state = tl.arange(0, M)[:, None] * H
    slice_ = tl.arange(0, K)
    start = tl.program_id(0) * M
    while start < num_rows:
        goal = start + tl.arange(0, M)
        inside = goal < num_rows
        if HAS_INDEX:
            goal = tl.load(index + goal, mask=inside, other=-1)
            inside = goal >= 0
        own = atoms + goal.to(tl.int64) * (3 * A)
        if C > 1:
            own = tl.where(tl.arange(0, M) % C == 0, own, resolvents + goal.to(tl.int64) * (3 * A))
        is_atom = inside & (tl.load(own, mask=inside, other=PAD) != PAD)
        if tl.max(is_atom.to(tl.int32), 0) > 0:
            first_variable, first_constant = tl.load(first_rows), tl.load(first_rows + 1)
            x = tl.zeros((M, H), FLOAT)
            num_atoms = tl.zeros((M,), FLOAT)
            j = 0
            while (j < A) & (tl.max(is_atom.to(tl.int32), 0) > 0):
                row = tl.load(own + 3 * j, mask=is_atom, other=0)
                embedding = tl.load(
                    rows + row.to(tl.int64)[:, None] * H + column[None, :], mask=is_atom[:, None], other=0.0
                )
                x += embedding.to(FLOAT)
                for k in tl.static_range(1, 3):
                    argument = tl.load(own + 3 * j + k, mask=is_atom, other=0)
                    row = tl.where(argument < 0, first_variable - argument - 1, first_constant + argument)
                    embedding = tl.load(
                        rows + row.to(tl.int64)[:, None] * H + column[None, :], mask=is_atom[:, None], other=0.0
                    )
                    if k == 1:
                        x += embedding.to(FLOAT)
                    else:
                        x -= embedding.to(FLOAT)
                num_atoms += is_atom.to(FLOAT)
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
                y = tl.zeros((M, H), FLOAT)
                for k in range(0, H, K):
                    operand = state + k + slice_[None, :]
                    tile = block * (H * H) + (k + slice_)[:, None] * H + column[None, :]
                    weight = tl.load(weights + tile)
                    if IS_WIDE:
                        part = tl.load(scratch + first + operand)
                        y = tl.dot(part, weight.to(FLOAT), y, input_precision=PRECISION, out_dtype=FLOAT)
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

            if C > 1:
                place, parts = tl.arange(0, C), tl.reshape(x, (M // C, C, H))
                feature = tl.sum(tl.where(place[None, :, None] == 0, parts, 0.0), 1)
                score = tl.sum(parts * feature[:, None, :], 2) * scale
                row = tl.reshape(goal, (M // C, C))
                tl.store(out + row, score, mask=(row >= 0) & (place[None, :] > 0))
            elif SCORES:
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
) -> None:
    """Launch the kernel with the arguments that `launch_tower` prepares."""
    atoms, *others = goals
    _launch(parameters, (atoms, atoms, *others), scoring, out, precision, {**constants, "C": 1})


def score_contests(
    parameters: Sequence[Tensor],
    goals: Tensor,
    resolvents: Tensor,
    contests: Tensor,
    count: Tensor,
    out: Tensor,
    precision: str,
) -> None:
    """Write the scores of the resolvents of contests into `out`, at their rows.

    parameters: of `build_tower_parameters`
    goals:      int32 [B, A, 3], resolvents: int32 [n, A, 3]
    contests:   int32 [m, CONTEST]  the goal of each contest, then its resolvents, without repetitions; -1 for none
    count:      int32 [] or [1]  the number of contests; the rest is not read
    out:        float32 or float64 [n]

    This never waits for the device.
    """
    weights, width = parameters[3], len(parameters[2])
    constants = {"BLOCKS": len(weights), "H": parameters[0].shape[1], "C": CONTEST}
    constants |= {"HAS_INDEX": True, "HAS_COUNT": True, "SCORES": True}
    given = (goals, resolvents, contests, count, contests.numel(), goals.shape[1])
    _launch(parameters, given, (parameters[0], contests, 1 / math.sqrt(width)), out, precision, constants)


def _launch(
    parameters: Sequence[Tensor],
    goals: Sequence[Any],
    scoring: Sequence[Any],
    out: Tensor,
    precision: str,
    constants: Mapping[str, Any],
) -> None:
    rows, _, input_bias, weights, low_weights, *_ = parameters
    hidden, width, device = rows.shape[1], len(input_bias), rows.device
    form = FORMS[precision]
    num_programs = min(triton.cdiv(goals[4], form.goals), PROGRAMS_PER_PROCESSOR * count_processors(device))
    state = (num_programs * form.goals, hidden)
    scratch = torch.empty(state, dtype=rows.dtype if precision in WIDE else weights.dtype, device=device)
    low_scratch = torch.empty(state if len(low_weights) else 0, dtype=weights.dtype, device=device)
    launch_kernel(
        tower_kernel,
        num_programs,
        (*goals, *parameters, *scoring, width, scratch, low_scratch, out),
        **constants,
        K=min(hidden, form.slice_),
        M=form.goals,
        PRECISION="ieee" if precision in WIDE else precision,
        FLOAT=tl.float64 if precision == EXACT else tl.float32,
        IS_WIDE=precision in WIDE,
        IS_PADDED=width < hidden,
        IS_INTERPRETED=not out.is_cuda,
        num_warps=form.num_warps,
        num_stages=form.num_stages,
    )
