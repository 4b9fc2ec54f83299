"""The precision of scores: their declared error, from a bound by size and a sample scored in float64."""

from typing import Final

import numpy as np
import torch
from torch import Tensor

from kgverify.engines.policy import Policy
from kgverify.program.limits import Limits
from kgverify.prover.stages.choose import Parameters, Score, build_parameters, score_two_tower
from kgverify.prover.stages.rescore import Rescoring
from kgverify.prover.stages.stage_functions import Stages
from kgverify.prover.state import PAD, Layout

FLOAT32: Final = "float32"
PRECISIONS: Final = (FLOAT32, "bf16x3", "fp16", "bf16")
"""The precisions of the policy's products. bf16x3: each factor is the sum of two numbers of bfloat16."""

RESCORED_SHARE: Final = 8
"""The score window has this many times the rows that may be scored again at each tick."""

NUM_SAMPLES: Final = {"cpu": 512, "cuda": 8192}
SAFETY: Final = {"cpu": 8.0, "cuda": 4.0}
"""The least ratio of the declared error to the largest error seen in a sample; smaller for a larger sample."""


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
        # The error of the sound score: the effect of a fault among the stages is not rounding.
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

    The last LayerNorm's scale and shift bound a score, and float32's epsilon its rounding from there. A norm over units that
    are nearly equal enlarges earlier rounding errors, and products may be rounded more; therefore random goals are also scored
    in float64.
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
    """Draw goals of one atom or a few, of any symbols and the first variables, int32 [n, A, 3]."""
    rng = np.random.default_rng(seed)
    num_predicates, num_constants = (len(policy.weights[f"embedding.{of}"]) for of in ("predicate", "constant"))
    shape = num, max_atoms
    arguments = rng.integers(-min(4, 2 * max_atoms), num_constants, (*shape, 2))
    atoms = np.concatenate((rng.integers(0, num_predicates, (*shape, 1)), arguments), axis=2)
    num_atoms = rng.integers(1, min(4, max_atoms) + 1, num)
    atoms[np.arange(max_atoms) >= num_atoms[:, None]] = PAD
    return torch.as_tensor(atoms.astype(np.int32), device=device)
