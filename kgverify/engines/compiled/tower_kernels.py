"""The `two_tower` policy as one Triton kernel: atoms in, scores out; nothing in between leaves the chip.

A program computes the tower of a block of goals: it adds up their symbols' rows, which have been through the input layer
already, and takes them through the blocks, the two halves of a state side by side so that each product is of square tiles.
Blocks in which every goal is padding end at once, so the cost is that of the goals that are there.
"""

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from kgverify.engines.compiled.choose import Parameters, Score, pad_rows
from kgverify.engines.compiled.state import PAD
from kgverify.engines.policy import Policy

GOALS_PER_PROGRAM: Final = {"float32": 64, "tf32": 128, "bf16x3": 128, "bf16": 64}
PRECISIONS: Final = ("float32", "tf32", "bf16x3", "bf16")
"""Of the products: 24 significant bits, 11, 16, and 8; sums are in float32."""

SLICE: Final = {"float32": 16, "tf32": 32, "bf16x3": 64, "bf16": 64}
"""Columns of the operands that are multiplied at a time."""
NUM_STAGES: Final = {"float32": 2, "tf32": 2, "bf16x3": 2, "bf16": 3}
NUM_WARPS: Final = 8
PROGRAMS_PER_PROCESSOR: Final = 4
WIDE: Final = ("float32", "tf32")
"""The precisions whose factors are kept in float32."""

_PAD = tl.constexpr(PAD)


@triton.jit
def _add_product(a, b, y, IS_INTERPRETED: tl.constexpr):
    """y + a @ b; Triton's interpreter multiplies bfloat16 as if it were integers."""
    if IS_INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), y)
    return tl.dot(a, b, y)


@triton.jit(do_not_specialize=["num_rows", "A"])
def _tower_kernel(
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
    IS_INTERPRETED: tl.constexpr,
):
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
        is_atom = inside & (tl.load(own, mask=inside, other=_PAD) != _PAD)
        if tl.max(is_atom.to(tl.int32), 0) > 0:
            first_variable, first_constant = tl.load(first_rows), tl.load(first_rows + 1)
            x = tl.zeros((M, H), tl.float32)
            num_atoms = tl.zeros((M,), tl.float32)
            j = 0
            while (j < A) & (tl.max(is_atom.to(tl.int32), 0) > 0):
                row = tl.load(own + 3 * j, mask=is_atom, other=0)
                x += tl.load(rows + row[:, None] * H + column[None, :], mask=is_atom[:, None], other=0.0)
                for k in tl.static_range(1, 3):
                    argument = tl.load(own + 3 * j + k, mask=is_atom, other=0)
                    row = tl.where(argument < 0, first_variable - argument - 1, first_constant + argument)
                    embedding = tl.load(rows + row[:, None] * H + column[None, :], mask=is_atom[:, None], other=0.0)
                    if k == 1:
                        x += embedding
                    else:
                        x -= embedding
                num_atoms += is_atom.to(tl.float32)
                j += 1
                more = is_atom & (j < A)
                is_atom = more & (tl.load(own + 3 * j, mask=more, other=_PAD) != _PAD)
            x = x / tl.maximum(num_atoms, 1.0)[:, None] + tl.load(input_bias + column)[None, :]

            for block in range(BLOCKS):
                if IS_WIDE:
                    tl.store(scratch + first + state + column[None, :], x)
                else:
                    high = x.to(tl.bfloat16)
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
                x -= (tl.sum(x, 1) / H)[:, None]
                factor = 1.0 / tl.sqrt(tl.sum(x * x, 1) / H + 1e-5)
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


def launch_tower(
    kernel: Any,
    parameters: Sequence[Tensor],
    atoms: Tensor,
    out: Tensor,
    precision: str,
    *,
    index: Tensor | None = None,
    count: Tensor | None = None,
    features: Tensor | None = None,
    slots: Tensor | None = None,
) -> None:
    """Of goals, atoms int32 [n, A, 3], into `out`: with `features` and `slots` their scores [n]; without, their towers [n, h].

    parameters: as of `build_tower_parameters`
    out:        float32; what is written for a goal without atoms is unspecified
    index:      int32 [m]  the goals that are meant, each at most once; None: all of them in turn
    count:      int32 [] or [1]  how many of them are computed at most; what comes after is not read; None: all
    features:   float32 [B, h]
    slots:      int32 or int64 [n]

    Nothing here waits for the device, and programs and memory are a matter of the tensors' sizes alone.
    """
    rows, _, _, weights, low_weights, *_ = parameters
    num_rows, hidden = len(atoms if index is None else index), rows.shape[1]
    size = GOALS_PER_PROGRAM[precision]
    num_programs = min(triton.cdiv(num_rows, size), _count_programs(atoms.device))
    if num_programs == 0:
        return
    state = (num_programs * size, hidden)
    scratch = torch.empty(state, dtype=weights.dtype, device=atoms.device)
    low_scratch = torch.empty(state if len(low_weights) else 0, dtype=weights.dtype, device=atoms.device)
    kernel[(num_programs,)](
        atoms,
        atoms if index is None else index,
        atoms if count is None else count,
        num_rows,
        atoms.shape[1],
        *parameters,
        rows if features is None else features,
        atoms if slots is None else slots,
        1 / math.sqrt(hidden),
        scratch,
        low_scratch,
        out,
        BLOCKS=weights.shape[0],
        H=hidden,
        K=min(hidden, SLICE[precision]),
        M=size,
        PRECISION="ieee" if precision == "float32" else precision,
        IS_WIDE=precision in WIDE,
        HAS_INDEX=index is not None,
        HAS_COUNT=count is not None,
        SCORES=features is not None,
        IS_INTERPRETED=not atoms.is_cuda,
        num_warps=NUM_WARPS,
        num_stages=NUM_STAGES[precision],
    )


def _count_programs(device: torch.device) -> int:
    """The most programs of a launch; each goes through blocks of goals in turn, and has scratch memory of its own."""
    if device.type != "cuda":
        return PROGRAMS_PER_PROCESSOR
    return PROGRAMS_PER_PROCESSOR * torch.cuda.get_device_properties(device).multi_processor_count


@torch.library.triton_op("kgverify::tower", mutates_args=())
def _tower_op(parameters: Sequence[Tensor], goals: Tensor, features: Tensor, slots: Tensor, precision: str) -> Tensor:
    return _compute(torch.library.wrap_triton(_tower_kernel), parameters, goals, features, slots, precision)


def _compute(
    kernel: Any, parameters: Sequence[Tensor], goals: Tensor, features: Tensor, slots: Tensor, precision: str
) -> Tensor:
    """Scores where `features` has rows, towers where it has none."""
    is_scored = len(features) > 0
    hidden = parameters[0].shape[1]
    out = torch.empty(len(goals) if is_scored else (len(goals), hidden), dtype=torch.float32, device=goals.device)
    scored = {"features": features, "slots": slots} if is_scored else {}
    launch_tower(kernel, parameters, goals, out, precision, **scored)
    return out


def can_run(policy: Policy) -> bool:
    """Whether the kernel takes the policy's sizes: a hidden width of 32 to 512, a power of two, and a block at least."""
    hidden = len(policy.weights["input.bias"])
    return 32 <= hidden <= 512 and hidden & (hidden - 1) == 0 and policy.num_blocks > 0


def build_tower_parameters(
    policy: Policy, precision: str, device: torch.device, *, is_rounded: bool = False
) -> Parameters:
    """The weights as the kernel takes them; `is_rounded` as of `build_parameters`.

    rows:        float32 [symbols, h]  predicates, variables, constants, each through the input layer (in float64), the
                                       second argument's with a minus to come
    first_rows:  int32 [2]             where the variables begin, and the constants
    input_bias:  float32 [h]
    weights:     [L, h, h]             transposed; float32, or bfloat16 for the precisions made of it
    low_weights: [L, h, h]             what the rounding of the weights left out; empty but for bf16x3
    biases, scales, shifts: float32 [L, h]
    """
    arrays = {name: np.asarray(array, np.float64) for name, array in policy.weights.items()}
    embeddings = np.concatenate([arrays[f"embedding.{kind}"] for kind in ("predicate", "variable", "constant")])

    def stack(part: str) -> Tensor:
        layers = [arrays[f"block.{i}.{part}"] for i in range(policy.num_blocks)]
        return torch.as_tensor(np.stack(layers), dtype=torch.float32).to(device)

    weights = stack("weight").transpose(1, 2).contiguous()
    low_weights = torch.zeros(0, dtype=torch.bfloat16, device=device)
    if precision not in WIDE:
        exact, weights = weights, weights.bfloat16()
        if precision == "bf16x3":
            low_weights = (exact - weights.float()).bfloat16()
    num_predicates, num_variables = (len(arrays[f"embedding.{kind}"]) for kind in ("predicate", "variable"))
    rows = torch.as_tensor(embeddings @ arrays["input.weight"].T, dtype=torch.float32)
    return (
        (pad_rows(rows) if is_rounded else rows).to(device),
        torch.tensor((num_predicates, num_predicates + num_variables), dtype=torch.int32, device=device),
        torch.as_tensor(arrays["input.bias"], dtype=torch.float32).to(device),
        weights,
        low_weights,
        stack("bias"),
        stack("norm.weight"),
        stack("norm.bias"),
    )


def build_tower_score(precision: str) -> Score:
    """The stage `score` by the kernel, on a CPU in Triton's interpreter; its parameters are those of `build_tower_parameters`."""

    def compute(parameters: Parameters, goals: Tensor, features: Tensor, slots: Tensor) -> Tensor:
        if not goals.is_cuda:
            return _compute(_tower_kernel, parameters, goals, features, slots, precision)
        computed: Tensor = _tower_op(list(parameters), goals, features, slots, precision)
        return computed

    def score(parameters: Parameters, goals: Tensor, resolvents: Tensor, slot: Tensor) -> Tensor:
        nothing = torch.empty(0, dtype=torch.float32, device=goals.device)
        features = compute(parameters, goals, nothing, slot[:0])
        return compute(parameters, resolvents, features, slot)

    return score
