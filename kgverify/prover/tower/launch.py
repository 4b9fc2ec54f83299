"""Launches of the tower by the kernel for a device and a precision, its parameters, and an operator for torch."""

import math
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Final

import numpy as np
import torch
import triton
from torch import Tensor

from kgverify.engines.policy import Policy
from kgverify.errors import UserError
from kgverify.program.limits import Limits
from kgverify.prover.program.tables import round_up
from kgverify.prover.stages.choose import Parameters, Rescoring, Score, build_parameters, pad_rows, score_two_tower
from kgverify.prover.stages.stage_functions import Stages
from kgverify.prover.state import PAD, Layout
from kgverify.prover.tower import portable
from kgverify.prover.tower.portable import EXACT, WIDE

NARROW: Final = {"bf16x3": torch.bfloat16, "bf16": torch.bfloat16, "fp16": torch.float16}
"""The types of the factors in the other precisions. fp16 is for weights and states below 65,504."""

LEAST_PADDED: Final = 32
MOST_WIDE: Final = 512
"""The smallest and the largest padded hidden width; widths are padded to powers of two."""

MOST_FLOAT16: Final = 1000.0
"""The largest weight or row for float16. Up to this value, no state of a goal is expected to exceed 65,504."""

HOPPER: Final = (9, 0)
"""The compute capability that has a special kernel."""
GLUON_VERSION: Final = "3.6."


def launch_tower(
    parameters: Sequence[Tensor],
    atoms: Tensor,
    out: Tensor,
    precision: str,
    *,
    index: Tensor | None = None,
    count: Tensor | None = None,
    against: tuple[Tensor, Tensor] | None = None,
) -> None:
    """Write scores [n] of goals, atoms int32 [n, A, 3], into `out`.

    Write their towers [n, h] if there is nothing to score against.

    parameters: the parameters of `build_tower_parameters`
    out:        float32, or float64 for towers in float64; the result for a goal without atoms is unspecified
    index:      int32 [m]  the goals to compute, without repetitions; None: all in turn
    count:      int32 [] or [1]  the largest number of goals to compute; the rest is not read; None: all
    against:    the towers of goals, float32 [B, h] (float64 in float64), and the index of the tower for each goal here,
                int32 or int64 [n]

    This never waits for the device; programs and memory depend only on the tensors' sizes.
    """
    rows, _, input_bias, weights, *_ = parameters
    num_rows, hidden, width = len(atoms if index is None else index), rows.shape[1], len(input_bias)
    if num_rows == 0:
        return
    goals = (atoms, atoms if index is None else index, atoms if count is None else count, num_rows, atoms.shape[1])
    scoring = (*(against or (rows, atoms)), 1 / math.sqrt(width))
    constants = {"BLOCKS": len(weights), "H": hidden}
    constants |= {"HAS_INDEX": index is not None, "HAS_COUNT": count is not None, "SCORES": against is not None}
    hopper = _find_hopper(atoms.device)
    if hopper is not None and hopper.can_launch(parameters, precision):
        hopper.launch(parameters, goals, scoring, out, precision, constants)
    else:
        portable.launch(parameters, goals, scoring, out, precision, constants)


@cache
def _find_hopper(device: torch.device) -> ModuleType | None:
    """Return the kernel for Hopper, if the device is a Hopper GPU and Triton has the version that the kernel needs."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) != HOPPER:
        return None
    if not triton.__version__.startswith(GLUON_VERSION):
        return None
    try:
        return import_module("kgverify.prover.tower.hopper")
    except ImportError:
        return None


@torch.library.custom_op("kgverify::tower", mutates_args=())
def _tower_op(parameters: Sequence[Tensor], goals: Tensor, features: Tensor, slots: Tensor, precision: str) -> Tensor:
    out = _allocate(parameters, goals, features)
    launch_tower(parameters, goals, out, precision, against=(features, slots) if len(features) > 0 else None)
    return out


@_tower_op.register_fake
def _(parameters: Sequence[Tensor], goals: Tensor, features: Tensor, slots: Tensor, precision: str) -> Tensor:
    return _allocate(parameters, goals, features)


def _allocate(parameters: Sequence[Tensor], goals: Tensor, features: Tensor) -> Tensor:
    """Allocate scores if `features` has rows, else towers."""
    shape = (len(goals),) if len(features) > 0 else (len(goals), parameters[0].shape[1])
    dtype = torch.float64 if parameters[0].dtype == torch.float64 else torch.float32
    return torch.empty(shape, dtype=dtype, device=goals.device)


def can_run(policy: Policy) -> bool:
    """Return whether the kernels support the policy's width."""
    return len(policy.weights["input.bias"]) <= MOST_WIDE


def build_tower_parameters(
    policy: Policy, precision: str, device: torch.device, *, is_rounded: bool = False
) -> Parameters:
    """Return the weights in the kernel's layout; `is_rounded` as in `build_parameters`.

    rows:        [symbols, p]          predicates, variables, constants, each after the input layer (in float64); the
                                       kernel subtracts the row of a second argument. In the type of the factors for a
                                       single product, else in float32 or float64
    first_rows:  int32 [2]             the first row of the variables, and of the constants
    input_bias:  float32 [h]
    weights:     [L, p, p]             transposed; in float32, or in the type of the precision's factors
    low_weights: [L, p, p]             the part that rounding removed from the weights; empty unless the precision is
                 bf16x3
    biases, scales, shifts: float32 [L, p]

    p: the width h padded with zeros to a power of two
    UserError if fp16 cannot represent them.
    """
    arrays = {name: np.asarray(array, np.float64) for name, array in policy.weights.items()}
    embeddings = np.concatenate([arrays[f"embedding.{kind}"] for kind in ("predicate", "variable", "constant")])

    hidden = len(arrays["input.bias"])
    padded = max(LEAST_PADDED, round_up(hidden))

    def stack(part: str, num_axes: int) -> Tensor:
        layers = [np.pad(arrays[f"block.{i}.{part}"], (0, padded - hidden)) for i in range(policy.num_blocks)]
        stacked = np.stack(layers) if layers else np.zeros((0, *(padded for _ in range(num_axes))))
        return torch.as_tensor(stacked, dtype=torch.float32)

    weights = stack("weight", 2).transpose(1, 2).contiguous()
    vectors = [stack(part, 1) for part in ("bias", "norm.weight", "norm.bias")]
    input_bias = torch.as_tensor(arrays["input.bias"], dtype=torch.float32)
    num_predicates, num_variables = (len(arrays[f"embedding.{kind}"]) for kind in ("predicate", "variable"))
    dtype = torch.float64 if precision == EXACT else torch.float32
    rows = torch.zeros((len(embeddings), padded), dtype=dtype)
    rows[:, :hidden] = torch.as_tensor(embeddings @ arrays["input.weight"].T)
    if precision == "fp16":
        _check_float16(rows, input_bias, weights, *vectors)
    low_weights = torch.zeros(0, dtype=torch.bfloat16)
    if precision not in WIDE:
        unrounded, weights = weights, weights.to(NARROW[precision])
        if precision == "bf16x3":
            low_weights = (unrounded - weights.float()).bfloat16()
    if precision in ("bf16", "fp16"):
        rows = rows.to(NARROW[precision])
    first_rows = torch.tensor((num_predicates, num_predicates + num_variables), dtype=torch.int32)
    parameters = (
        pad_rows(rows) if is_rounded else rows,
        first_rows,
        input_bias,
        weights,
        low_weights,
        *vectors,
    )
    return tuple(part.to(device) for part in parameters)


def _check_float16(*parameters: Tensor) -> None:
    """Raise UserError if some weight, or a symbol's row, is too large for float16."""
    if any(float(part.abs().max()) > MOST_FLOAT16 for part in parameters if part.numel()):
        raise UserError(
            "some weights are too large for precision 'fp16'",
            where="precision",
            fix="use --tune precision=bf16, or bf16x3",
        )


def build_tower_score(precision: str) -> Score:
    """Return the stage `score` by the kernel, with parameters of `build_tower_parameters`. On a CPU, Triton interprets it."""

    def score(parameters: Parameters, goals: Tensor, resolvents: Tensor, slot: Tensor) -> Tensor:
        nothing = torch.empty(0, device=goals.device)
        features = _tower_op(list(parameters), goals, nothing, slot[:0], precision)
        scores: Tensor = _tower_op(list(parameters), resolvents, features, slot, precision)
        return scores

    return score


FLOAT32: Final = "float32"
PRECISIONS: Final = (FLOAT32, "bf16x3", "fp16", "bf16")
"""The precisions of the policy's products. bf16x3: each factor is the sum of two bfloat16 numbers."""

RESCORED_SHARE: Final = 8
"""The ratio of the rows of the score window to the rows that may be scored again at each tick."""

NUM_SAMPLES: Final = {"cpu": 512, "cuda": 8192}
SAFETY: Final = {"cpu": 8.0, "cuda": 4.0}
"""The smallest ratio of the declared error to the largest error seen in a sample; it is smaller for a larger sample."""


def with_precision(
    precision: str,
    policy: Policy,
    stages: Stages,
    limits: Limits,
    layout: Layout,
    device: torch.device,
    *,
    is_rounded: bool,
) -> tuple[Stages, Parameters, Rescoring | None, float]:
    """Return stages that score in a precision, their parameters, the rescoring of close choices, and the scores' error."""
    if precision == FLOAT32:
        parameters = build_parameters(policy, device, torch.float32, is_rounded=is_rounded)
        # This is the error of the sound score: the effect of a fault among the stages is not rounding.
        error = estimate_score_error(policy, limits.max_atoms, device, score_two_tower, parameters)
        return stages, parameters, None, error
    from kgverify.prover.tower.launch import build_tower_parameters, build_tower_score

    fast, exact = build_tower_score(precision), build_tower_score(FLOAT32)
    parameters = build_tower_parameters(policy, precision, device, is_rounded=is_rounded)
    error = estimate_score_error(policy, limits.max_atoms, device, fast, parameters)

    def score(given: Parameters, goals: Tensor, resolvents: Tensor, slot: Tensor) -> Tensor:
        return fast(given[: len(parameters)], goals, resolvents, slot)

    window = max(limits.max_resolvents, layout.score_window // RESCORED_SHARE)
    rescoring = Rescoring(exact, len(parameters), error, window)
    both = (*parameters, *build_tower_parameters(policy, FLOAT32, device, is_rounded=is_rounded))
    return stages._replace(score=score), both, rescoring, error


def estimate_score_error(
    policy: Policy, max_atoms: int, device: torch.device, score: Score, parameters: Parameters
) -> float:
    """Estimate the absolute rounding error of scores, in nats.

    The scale and shift of the last LayerNorm bound a score, and the epsilon of float32 bounds its rounding from there
    on. A norm over nearly equal units enlarges earlier rounding errors, and products may be rounded more. Therefore
    random goals are also scored in float64.
    """
    if policy.name == "shortest":
        return 0.0
    num = sample_size(device)
    goals, resolvents = (draw_goals(policy, max_atoms, seed, device, num) for seed in (0, 1))
    slot = torch.arange(num, device=device)
    exact = score_two_tower(build_parameters(policy, device, torch.float64), goals, resolvents, slot)
    seen = float((score(parameters, goals, resolvents, slot).double() - exact).abs().max())
    return declare_error(policy, seen, device)


def declare_error(policy: Policy, seen: float, device: torch.device) -> float:
    """Return the declared error for the largest error `seen` in a sample; both in nats."""
    return max(_error_by_size(policy), SAFETY.get(device.type, SAFETY["cpu"]) * seen)


def sample_size(device: torch.device) -> int:
    """Return the number of pairs of goals that are scored to measure the error."""
    return NUM_SAMPLES.get(device.type, NUM_SAMPLES["cpu"])


def _error_by_size(policy: Policy) -> float:
    hidden = len(policy.weights["input.bias"])
    last = policy.num_blocks - 1
    if last < 0:
        return 1e-4
    scale = np.abs(policy.weights[f"block.{last}.norm.weight"]).max()
    shift = np.abs(policy.weights[f"block.{last}.norm.bias"]).max()
    largest = hidden**0.5 * float(scale + shift) ** 2
    return float(largest * (policy.num_blocks + 2) * hidden**0.5 * np.finfo(np.float32).eps)


def draw_goals(policy: Policy, max_atoms: int, seed: int, device: torch.device, num: int) -> Tensor:
    """Draw goals of one or a few atoms, with any symbols and the first variables, int32 [n, A, 3]."""
    rng = np.random.default_rng(seed)
    num_predicates, num_constants = (len(policy.weights[f"embedding.{of}"]) for of in ("predicate", "constant"))
    shape = num, max_atoms
    arguments = rng.integers(-min(4, 2 * max_atoms), num_constants, (*shape, 2))
    atoms = np.concatenate((rng.integers(0, num_predicates, (*shape, 1)), arguments), axis=2)
    num_atoms = rng.integers(1, min(4, max_atoms) + 1, num)
    atoms[np.arange(max_atoms) >= num_atoms[:, None]] = PAD
    return torch.as_tensor(atoms.astype(np.int32), device=device)
