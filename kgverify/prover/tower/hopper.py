"""The `two_tower` policy as one Gluon kernel for Hopper: `portable.py` with each transfer and product scheduled by hand.

A program takes 128 goals at a time through all blocks, 64 for each of two groups of four warps. Their rounded states
stay in registers, as operands of the products, since shared memory is busy with the weights. A separate warp streams
the first states, which `embed.py` has computed, and the weights in slices, for both groups. The second group lags
behind by some slices, so that the products of one group run while the other computes its norm. If there are at most 64
goals for each program, only the first group takes them, which is faster.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kgverify.prover.execution.device import count_processors
from kgverify.prover.execution.device import launch as launch_kernel
from kgverify.prover.kernel_constants import PAD
from kgverify.prover.tower import embed

HIDDEN: Final = 256
GOALS_PER_PROGRAM: Final = 128
GROUP_REGISTERS: Final = 240
STREAM_REGISTERS: Final = 24
SHARED_BYTES: Final = 232_448
BARRIER_BYTES: Final = 1024
"""The room reserved for barriers, and for values that reductions pass between warps."""


PRECISIONS: Final = ("bf16", "fp16")
"""The precisions of a single product."""
SLICE: Final = 64
"""The number of rows of the weights that are streamed at a time."""
NUM_SLICES: Final = 4
"""The number of slices that shared memory holds."""
LEAD: Final = 3
"""The number of slices by which the first group is ahead at the start of a block."""


def can_launch(parameters: Sequence[Tensor], precision: str) -> bool:
    """Return whether the kernel supports these sizes and this precision."""
    _, _, input_bias, weights, *_ = parameters
    return precision in PRECISIONS and len(input_bias) == HIDDEN and len(weights) > 0


@gluon.jit
def find_goals(index, start, num_rows, R: gl.constexpr, LAYOUT: gl.constexpr, HAS_INDEX: gl.constexpr):
    """Return the goals of R rows of the program, int32 [R], and whether each exists."""
    goal = start + gl.arange(0, R, layout=LAYOUT)
    inside = goal < num_rows
    if HAS_INDEX:
        goal = gl.load(index + goal, mask=inside, other=0)
    return goal, inside


@gluon.jit
def has_atoms(atoms, index, start, num_rows, A, M: gl.constexpr, HAS_INDEX: gl.constexpr):
    """Return a number above 0 if any of M goals has an atom."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    goal, inside = find_goals(index, start, num_rows, M, LAYOUT, HAS_INDEX)
    predicate = gl.load(atoms + goal.to(gl.int64) * (3 * A), mask=inside, other=PAD)
    return gl.max((predicate != PAD).to(gl.int32), 0)


@gluon.jit
def has_rows(first, rows_per_tile, num_rows, GROUP: gl.constexpr, G: gl.constexpr):
    """Return whether a group has goals in the tile that begins with a row.

    If not, it has none in later tiles of the program.
    """
    return (rows_per_tile > GROUP * G) & (first + GROUP * G < num_rows)


@gluon.jit
def _step(place, phase, NUM_SLICES: gl.constexpr):
    """Return the place of the next slice, and the phase of its barriers."""
    place += 1
    if place == NUM_SLICES:
        place = 0
        phase ^= 1
    return place, phase


@gluon.jit
def _stream_slice(weights, row, ring, full, empty, place, phase, H: gl.constexpr, K: gl.constexpr):
    mbarrier.wait(empty.index(place), phase)
    mbarrier.expect(full.index(place), K * H * 2)
    tma.async_copy_global_to_shared(weights, [row, 0], full.index(place), ring.index(place))


@gluon.jit
def _stream_states(states, row, to, arrived, free, phase, G: gl.constexpr, H: gl.constexpr):
    mbarrier.wait(free, phase)
    mbarrier.expect(arrived, G * H * 2)
    tma.async_copy_global_to_shared(states, [row, 0], arrived, to)


@gluon.jit
def stream(
    atoms,
    index,
    num_rows,
    A,
    states,
    weights,
    first_state,
    second_state,
    arrived,
    free,
    ring,
    full,
    empty,
    rows_per_tile,
    BLOCKS: gl.constexpr,
    H: gl.constexpr,
    M: gl.constexpr,
    K: gl.constexpr,
    NUM_SLICES: gl.constexpr,
    HAS_INDEX: gl.constexpr,
    HAS_COUNT: gl.constexpr,
):
    """Stream the first states and the weights of all blocks, slice by slice, once for each tile of 128 or 64 goals."""
    G: gl.constexpr = M // 2
    place = 0
    phase = 1
    turn = 1
    for tile in range(gl.program_id(0), gl.cdiv(num_rows, rows_per_tile), gl.num_programs(0)):
        first = tile * rows_per_tile
        is_used = num_rows
        if not HAS_COUNT:
            is_used = has_atoms(atoms, index, first, num_rows, A, M, HAS_INDEX)
        if is_used > 0:
            _stream_states(states, first, first_state, arrived.index(0), free.index(0), turn, G, H)
            if has_rows(first, rows_per_tile, num_rows, 1, G):
                _stream_states(states, first + G, second_state, arrived.index(1), free.index(1), turn, G, H)
            turn ^= 1
            for row in range(0, BLOCKS * H, K):
                _stream_slice(weights, row, ring, full, empty, place, phase, H, K)
                place, phase = _step(place, phase, NUM_SLICES)


@gluon.jit
def _halve(x):
    """Return the left and the right half of the columns."""
    return gl.split(gl.permute(gl.reshape(x, [x.shape[0], 2, x.shape[1] // 2]), [0, 2, 1]))


@gluon.jit
def _quarter(x, LAYOUT: gl.constexpr):
    """Return the columns in four parts, as operands that a product takes from registers."""
    left, right = _halve(x)
    first, second = _halve(left)
    third, fourth = _halve(right)
    return (
        gl.convert_layout(first, LAYOUT, assert_trivial=True),
        gl.convert_layout(second, LAYOUT, assert_trivial=True),
        gl.convert_layout(third, LAYOUT, assert_trivial=True),
        gl.convert_layout(fourth, LAYOUT, assert_trivial=True),
    )


@gluon.jit
def multiply(
    acc,
    state,
    ring,
    full,
    empty,
    ahead,
    place,
    phase,
    GROUP: gl.constexpr,
    NUM_SLICES: gl.constexpr,
    LEAD: gl.constexpr,
    OPERAND: gl.constexpr,
):
    """Return acc + state @ weights, float32 [64, h]. A slice is released once the product of the next slice is issued."""
    parts = _quarter(state, OPERAND)
    before = place
    for step in gl.static_range(4):
        mbarrier.wait(full.index(place), phase)
        acc = warpgroup_mma(parts[step], ring.index(place), acc, is_async=True)
        if step > 0:
            acc = warpgroup_mma_wait(1, deps=(acc,))
            mbarrier.arrive(empty.index(before), count=1)
            if GROUP == 0 and step == LEAD:
                mbarrier.arrive(ahead, count=1)
        before = place
        place, phase = _step(place, phase, NUM_SLICES)
    y, _first, _second, _third, _fourth = warpgroup_mma_wait(0, deps=(acc, parts[0], parts[1], parts[2], parts[3]))
    mbarrier.arrive(empty.index(before), count=1)
    return y, place, phase


@gluon.jit
def _release_slices(full, empty, place, phase, NUM: gl.constexpr, NUM_SLICES: gl.constexpr):
    """Release slices that the group does not use, each once it has arrived."""
    for _ in range(NUM):
        mbarrier.wait(full.index(place), phase)
        mbarrier.arrive(empty.index(place), count=1)
        place, phase = _step(place, phase, NUM_SLICES)
    return place, phase


@gluon.jit
def normalize(x, H: gl.constexpr):
    """Apply LayerNorm without scale and shift."""
    mean = gl.sum(x, 1) * (1.0 / H)
    variance = gl.maximum(gl.sum(x * x, 1) * (1.0 / H) - mean * mean, 0.0)
    factor = gl.rsqrt(variance + 1e-5)
    return x * factor[:, None] - (mean * factor)[:, None]


@gluon.jit
def load_vector(vectors, kept, block, WHICH: gl.constexpr, H: gl.constexpr, KEEPS: gl.constexpr, LAYOUT: gl.constexpr):
    """Load a bias, scale or shift of a block, float32 [1, h]."""
    if KEEPS:
        vector = kept.index(3 * block + WHICH).load(gl.SliceLayout(0, LAYOUT))
    else:
        vector = gl.load(vectors + block * H + gl.arange(0, H, layout=gl.SliceLayout(0, LAYOUT)))
    return vector[None, :]


@gluon.jit
def _compute(
    atoms,
    index,
    num_rows,
    A,
    biases,
    scales,
    shifts,
    features,
    slots,
    scale,
    out,
    state,
    arrived,
    free,
    ring,
    full,
    empty,
    ahead,
    kept,
    rows_per_tile,
    GROUP: gl.constexpr,
    BLOCKS: gl.constexpr,
    H: gl.constexpr,
    M: gl.constexpr,
    K: gl.constexpr,
    NUM_SLICES: gl.constexpr,
    LEAD: gl.constexpr,
    KEEPS: gl.constexpr,
    HAS_INDEX: gl.constexpr,
    HAS_COUNT: gl.constexpr,
    SCORES: gl.constexpr,
):
    """Compute the towers of one group's 64 goals of each 128."""
    G: gl.constexpr = M // 2
    ACC: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, H, 16])
    OPERAND: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=ACC, k_width=2)
    column = gl.arange(0, H, layout=gl.SliceLayout(0, ACC))
    place = 0
    phase = 0
    turn = 0
    used = 0
    for tile in range(gl.program_id(0), gl.cdiv(num_rows, rows_per_tile), gl.num_programs(0)):
        first = tile * rows_per_tile
        is_used = num_rows
        if not HAS_COUNT:
            is_used = has_atoms(atoms, index, first, num_rows, A, M, HAS_INDEX)
        if is_used > 0 and not has_rows(first, rows_per_tile, num_rows, GROUP, G):
            place, phase = _release_slices(full, empty, place, phase, BLOCKS * H // K, NUM_SLICES)
        elif is_used > 0:
            first += GROUP * G
            goal, inside = find_goals(index, first, num_rows, G, gl.SliceLayout(1, ACC), HAS_INDEX)
            if SCORES:
                slot = gl.load(slots + goal, mask=inside, other=0).to(gl.int32)
            mbarrier.wait(arrived.index(GROUP), used)
            used ^= 1
            x = state.load(ACC)
            gl.thread_barrier()
            mbarrier.arrive(free.index(GROUP), count=1)
            for block in range(BLOCKS):
                if GROUP == 1:
                    mbarrier.wait(ahead, turn & 1)
                    turn += 1
                bias = load_vector(biases, kept, block, 0, H, KEEPS, ACC)
                acc = warpgroup_mma_init(gl.zeros([G, H], gl.float32, layout=ACC) + bias)
                y, place, phase = multiply(
                    acc, x, ring, full, empty, ahead, place, phase, GROUP, NUM_SLICES, LEAD, OPERAND
                )
                y = gl.maximum(y, 0.0) + x.to(gl.float32)
                y = normalize(y, H) * load_vector(scales, kept, block, 1, H, KEEPS, ACC)
                y += load_vector(shifts, kept, block, 2, H, KEEPS, ACC)
                x = y.to(state.dtype)
                if block == BLOCKS - 1:
                    if SCORES:
                        own = features + (slot * H)[:, None] + column[None, :]
                        feature = gl.load(own, mask=inside[:, None], other=0.0)
                        gl.store(out + goal, gl.sum(y * feature, 1) * scale, mask=inside)
                    else:
                        own = out + (goal.to(gl.int64) * H)[:, None] + column[None, :]
                        gl.store(own, y, mask=inside[:, None])


@gluon.jit(do_not_specialize=["num_rows", "A"], do_not_specialize_on_alignment=["count"])
def _tower_kernel(
    atoms,
    index,
    count,
    num_rows,
    A,
    states,
    weights,
    biases,
    scales,
    shifts,
    features,
    slots,
    scale,
    out,
    BLOCKS: gl.constexpr,
    H: gl.constexpr,
    M: gl.constexpr,
    K: gl.constexpr,
    NUM_SLICES: gl.constexpr,
    LEAD: gl.constexpr,
    KEEPS: gl.constexpr,
    HAS_INDEX: gl.constexpr,
    HAS_COUNT: gl.constexpr,
    SCORES: gl.constexpr,
    GROUP_REGISTERS: gl.constexpr,
    STREAM_REGISTERS: gl.constexpr,
):
    if HAS_COUNT:
        num_rows = gl.minimum(num_rows, gl.load(count)).to(gl.int32)
    G: gl.constexpr = M // 2
    rows_per_tile = gl.where(num_rows > gl.num_programs(0) * G, M, G)
    OPERAND: gl.constexpr = weights.dtype
    STATE: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    first_state = gl.allocate_shared_memory(OPERAND, [G, H], STATE)
    second_state = gl.allocate_shared_memory(OPERAND, [G, H], STATE)
    ring = gl.allocate_shared_memory(OPERAND, [NUM_SLICES, K, H], weights.layout)
    full = gl.allocate_shared_memory(gl.int64, [NUM_SLICES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [NUM_SLICES, 1], mbarrier.MBarrierLayout())
    ahead = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for i in gl.static_range(NUM_SLICES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    mbarrier.init(ahead, count=1)
    arrived = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(arrived.index(i), count=1)
        mbarrier.init(free.index(i), count=1)
    kept = ahead
    if KEEPS:
        kept = gl.allocate_shared_memory(gl.float32, [3 * BLOCKS, H], gl.SwizzledSharedLayout(1, 1, 1, order=[0]))
        element = gl.arange(0, H, layout=gl.BlockedLayout([H // 128], [32], [4], [0]))
        if gl.program_id(0) * rows_per_tile < num_rows:
            for block in gl.static_range(BLOCKS):
                kept.index(3 * block).store(gl.load(biases + block * H + element))
                kept.index(3 * block + 1).store(gl.load(scales + block * H + element))
                kept.index(3 * block + 2).store(gl.load(shifts + block * H + element))
        gl.thread_barrier()
    fence_async_shared()
    gl.warp_specialize(
        [
            (
                _compute,
                (
                    atoms, index, num_rows, A, biases, scales, shifts, features, slots, scale, out, first_state,
                    arrived, free, ring, full, empty, ahead, kept, rows_per_tile, gl.constexpr(0), BLOCKS, H, M, K, NUM_SLICES,
                    LEAD, KEEPS, HAS_INDEX, HAS_COUNT, SCORES,
                ),
            ),
            (
                _compute,
                (
                    atoms, index, num_rows, A, biases, scales, shifts, features, slots, scale, out, second_state,
                    arrived, free, ring, full, empty, ahead, kept, rows_per_tile, gl.constexpr(1), BLOCKS, H, M, K, NUM_SLICES,
                    LEAD, KEEPS, HAS_INDEX, HAS_COUNT, SCORES,
                ),
            ),
            (
                stream,
                (
                    atoms, index, num_rows, A, states, weights, first_state, second_state, arrived, free, ring, full, empty,
                    rows_per_tile, BLOCKS, H, M, K, NUM_SLICES, HAS_INDEX, HAS_COUNT,
                ),
            ),
        ],
        [4, 1],
        [GROUP_REGISTERS, STREAM_REGISTERS],
    )  # fmt: skip


def launch(
    parameters: Sequence[Tensor],
    goals: Sequence[Any],
    scoring: Sequence[Any],
    out: Tensor,
    precision: str,
    constants: Mapping[str, Any],
) -> None:
    """Launch the kernels with the arguments that `launch_tower` prepares, if `can_launch` supports them."""
    rows, _, _, weights, _, *vectors = parameters
    num_rows = goals[3]
    states = torch.empty((num_rows, HIDDEN), dtype=weights.dtype, device=rows.device)
    embed.launch(parameters, goals, states, has_index=constants["HAS_INDEX"], has_count=constants["HAS_COUNT"])
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    streamed = (
        TensorDescriptor.from_tensor(states, [GOALS_PER_PROGRAM // 2, HIDDEN], layout),
        TensorDescriptor.from_tensor(weights.view(-1, HIDDEN), [SLICE, HIDDEN], layout),
    )
    launch_kernel(
        _tower_kernel,
        min(triton.cdiv(num_rows, GOALS_PER_PROGRAM // 2), count_processors(rows.device)),
        (*goals, *streamed, *vectors, *scoring, out),
        **constants,
        M=GOALS_PER_PROGRAM,
        K=SLICE,
        NUM_SLICES=NUM_SLICES,
        LEAD=LEAD,
        KEEPS=_has_room(len(weights)),
        GROUP_REGISTERS=GROUP_REGISTERS,
        STREAM_REGISTERS=STREAM_REGISTERS,
        num_warps=4,
    )


def _has_room(num_blocks: int) -> bool:
    """Return whether all biases, scales and shifts fit in shared memory beside the states and the slices."""
    wide = (GOALS_PER_PROGRAM + NUM_SLICES * SLICE) * HIDDEN * 2
    return wide + 3 * num_blocks * HIDDEN * 4 + BARRIER_BYTES <= SHARED_BYTES
