"""The tower of a goal in float64, one goal at a time, for the few scores that decide a close choice.

Every goal takes the same instructions at any position of a list, so that its score is always the same number.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from kgverify.engines.compiled.execution.kernel_launch import count_processors
from kgverify.engines.compiled.execution.kernel_launch import launch as launch_kernel
from kgverify.engines.compiled.kernel_constants import PAD

EXACT: Final = "float64"
"""The precision of the reference, which decides close choices."""
PROGRAMS_PER_PROCESSOR: Final = 2
SLICE: Final = 32
"""The rows of a weight matrix that are multiplied at a time."""
NUM_WARPS: Final = 16


@triton.jit
def _normalize(x, scales, shifts, at, is_inside, width):
    x = tl.where(is_inside, x - tl.sum(x, 0) / width, 0.0)
    x = x / tl.sqrt(tl.sum(x * x, 0) / width + 1e-5)
    return x * tl.load(scales + at).to(tl.float64) + tl.load(shifts + at).to(tl.float64)


@triton.jit(do_not_specialize=["num_rows", "A", "width"], do_not_specialize_on_alignment=["count"])
def exact_kernel(
    atoms,
    index,
    count,
    num_rows,
    A,
    rows,
    first_rows,
    input_bias,
    weights,
    biases,
    scales,
    shifts,
    features,
    slots,
    scale,
    width,
    scratch,
    out,
    BLOCKS: tl.constexpr,
    H: tl.constexpr,
    K: tl.constexpr,
    HAS_INDEX: tl.constexpr,
    HAS_COUNT: tl.constexpr,
    SCORES: tl.constexpr,
):
    """Compute towers, or scores, of goals; parameters as in `launch_tower`."""
    if HAS_COUNT:
        num_rows = tl.minimum(num_rows, tl.load(count))
    first_variable, first_constant = tl.load(first_rows), tl.load(first_rows + 1)
    column = tl.arange(0, H)
    is_inside = column < width
    slice_ = tl.arange(0, K)
    tile = slice_[:, None] * H + column[None, :]
    state = scratch + tl.program_id(0).to(tl.int64) * H
    number = tl.program_id(0)
    while number < num_rows:
        goal = number.to(tl.int64)
        if HAS_INDEX:
            goal = tl.load(index + number).to(tl.int64)
        x = tl.zeros((H,), tl.float64)
        num_atoms = 0
        own = atoms + goal * (3 * A)
        predicate = tl.load(own)
        while (num_atoms < A) & (predicate != PAD):
            first, second = tl.load(own + 3 * num_atoms + 1), tl.load(own + 3 * num_atoms + 2)
            first = tl.where(first < 0, first_variable - first - 1, first_constant + first)
            second = tl.where(second < 0, first_variable - second - 1, first_constant + second)
            x += tl.load(rows + predicate.to(tl.int64) * H + column)
            x += tl.load(rows + first.to(tl.int64) * H + column) - tl.load(rows + second.to(tl.int64) * H + column)
            num_atoms += 1
            predicate = tl.load(own + 3 * num_atoms, mask=num_atoms < A, other=PAD)
        x = x / tl.maximum(num_atoms, 1).to(tl.float64) + tl.load(input_bias + column, mask=is_inside, other=0.0).to(
            tl.float64
        )
        if BLOCKS > 0:
            # The next slice is loaded while one is multiplied.
            following = tl.load(weights + tile)
        for block in range(BLOCKS):
            tl.store(state + column, x)
            tl.debug_barrier()
            y = tl.zeros((K, H), tl.float64)
            for k in range(0, H, K):
                slice_of_block = following
                place = block * (H * H) + (k + K) * H
                following = tl.load(weights + tl.minimum(place, (BLOCKS * H - K) * H) + tile)
                part = tl.load(state + k + slice_)
                y += part[:, None] * slice_of_block.to(tl.float64)
            tl.debug_barrier()
            at = block * H + column
            x += tl.maximum(tl.sum(y, 0) + tl.load(biases + at).to(tl.float64), 0.0)
            x = _normalize(x, scales, shifts, at, is_inside, width)
        if SCORES:
            slot = tl.load(slots + goal).to(tl.int64)
            tl.store(out + goal, tl.sum(x * tl.load(features + slot * H + column), 0) * scale)
        else:
            tl.store(out + goal * H + column, x)
        number += tl.num_programs(0)


def launch(
    parameters: Sequence[Tensor],
    goals: Sequence[Any],
    scoring: Sequence[Any],
    out: Tensor,
    constants: Mapping[str, Any],
) -> None:
    """Launch the kernel with the arguments that `launch_tower` prepares; features are float64."""
    rows, first_rows, input_bias, weights, _, *vectors = parameters
    num_programs = min(goals[3], PROGRAMS_PER_PROCESSOR * count_processors(rows.device))
    scratch = torch.empty((num_programs, rows.shape[1]), dtype=torch.float64, device=rows.device)
    ends = (*scoring, len(input_bias), scratch, out)
    given = (*goals, rows, first_rows, input_bias, weights, *vectors, *ends)
    launch_kernel(exact_kernel, num_programs, given, K=SLICE, **constants, num_warps=NUM_WARPS)
