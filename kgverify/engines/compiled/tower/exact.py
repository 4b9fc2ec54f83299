"""The tower of a goal in float64, one goal at a time, for the few scores that decide a close choice.

Every goal takes the same instructions at any position of a list, so that its score is always the same number.
"""

import math
from collections.abc import Sequence
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from kgverify.engines.compiled.execution.kernel_launch import count_processors
from kgverify.engines.compiled.execution.kernel_launch import launch as launch_kernel
from kgverify.engines.compiled.state import PAD

EXACT: Final = "float64"
"""The precision of the reference, which decides close choices."""
PROGRAMS_PER_PROCESSOR: Final = 2
SLICE: Final = 16
"""The rows of a weight matrix that are multiplied at a time."""

_PAD = tl.constexpr(PAD)


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
    """Compute towers, or scores, of goals; parameters as in `launch`."""
    if HAS_COUNT:
        num_rows = tl.minimum(num_rows, tl.load(count))
    first_variable, first_constant = tl.load(first_rows), tl.load(first_rows + 1)
    column = tl.arange(0, H)
    is_inside = column < width
    slice_ = tl.arange(0, K)
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
        while (num_atoms < A) & (predicate != _PAD):
            first, second = tl.load(own + 3 * num_atoms + 1), tl.load(own + 3 * num_atoms + 2)
            first = tl.where(first < 0, first_variable - first - 1, first_constant + first)
            second = tl.where(second < 0, first_variable - second - 1, first_constant + second)
            x += tl.load(rows + predicate.to(tl.int64) * H + column)
            x += tl.load(rows + first.to(tl.int64) * H + column) - tl.load(rows + second.to(tl.int64) * H + column)
            num_atoms += 1
            predicate = tl.load(own + 3 * num_atoms, mask=num_atoms < A, other=_PAD)
        x = x / tl.maximum(num_atoms, 1).to(tl.float64) + tl.load(input_bias + column, mask=is_inside, other=0.0).to(
            tl.float64
        )
        for block in range(BLOCKS):
            tl.store(state + column, x)
            tl.debug_barrier()
            y = tl.zeros((K, H), tl.float64)
            for k in range(0, H, K):
                part = tl.load(state + k + slice_)
                tile = block * (H * H) + (k + slice_)[:, None] * H + column[None, :]
                y += part[:, None] * tl.load(weights + tile).to(tl.float64)
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
    atoms: Tensor,
    out: Tensor,
    *,
    index: Tensor | None,
    count: Tensor | None,
    features: Tensor | None,
    slots: Tensor | None,
) -> None:
    """Launch the kernel with the arguments of `launch_tower`; features are float64."""
    rows, first_rows, input_bias, weights, _, biases, scales, shifts = parameters
    num_rows, hidden, width = len(atoms if index is None else index), rows.shape[1], len(input_bias)
    num_programs = min(num_rows, PROGRAMS_PER_PROCESSOR * count_processors(atoms.device))
    if num_programs == 0:
        return
    launch_kernel(
        exact_kernel,
        num_programs,
        atoms,
        atoms if index is None else index,
        atoms if count is None else count,
        num_rows,
        atoms.shape[1],
        rows,
        first_rows,
        input_bias,
        weights,
        biases,
        scales,
        shifts,
        rows if features is None else features,
        atoms if slots is None else slots,
        1 / math.sqrt(width),
        width,
        torch.empty((num_programs, hidden), dtype=torch.float64, device=atoms.device),
        out,
        BLOCKS=weights.shape[0],
        H=hidden,
        K=SLICE,
        HAS_INDEX=index is not None,
        HAS_COUNT=count is not None,
        SCORES=features is not None,
        num_warps=8,
    )
