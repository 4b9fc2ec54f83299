"""How far scores may be from the exact ones: a bound by their size, and what scoring again in float64 shows."""

from typing import Final

import numpy as np
import torch
from torch import Tensor

from kgverify.engines.compiled.choose import build_parameters, score_two_tower
from kgverify.engines.compiled.state import PAD
from kgverify.engines.policy import Policy

NUM_SAMPLES: Final = 512
SAFETY: Final = 8.0
"""How many times the largest error seen in a sample the declared error is at least."""


def estimate_score_error(policy: Policy, max_atoms: int, device: torch.device) -> float:
    """The rounding error of float32 scores, absolute, in nats.

    The last LayerNorm's scale and shift bound a score, and float32's epsilon its rounding from there. A norm over units that
    are nearly equal enlarges what was rounded before it; how much depends on the weights, so random goals are scored in both
    precisions as well.
    """
    if policy.name == "shortest":
        return 0.0
    return max(_error_by_size(policy), SAFETY * _largest_error_seen(policy, max_atoms, device))


def _error_by_size(policy: Policy) -> float:
    hidden = len(policy.weights["input.bias"])
    last = policy.num_blocks - 1
    if last < 0:
        return 1e-4
    scale = np.abs(policy.weights[f"block.{last}.norm.weight"]).max()
    shift = np.abs(policy.weights[f"block.{last}.norm.bias"]).max()
    largest = hidden**0.5 * float(scale + shift) ** 2
    return float(largest * (policy.num_blocks + 2) * hidden**0.5 * np.finfo(np.float32).eps)


def _largest_error_seen(policy: Policy, max_atoms: int, device: torch.device) -> float:
    goals, resolvents = (_draw_goals(policy, max_atoms, seed, device) for seed in (0, 1))
    slot = torch.arange(NUM_SAMPLES, device=device)
    single, double = (
        score_two_tower(build_parameters(policy, device, dtype), goals, resolvents, slot).double()
        for dtype in (torch.float32, torch.float64)
    )
    return float((single - double).abs().max())


def _draw_goals(policy: Policy, max_atoms: int, seed: int, device: torch.device) -> Tensor:
    """int32 [n, A, 3]: one atom or a few, of any symbols and the first variables."""
    rng = np.random.default_rng(seed)
    num_predicates, num_constants = (len(policy.weights[f"embedding.{of}"]) for of in ("predicate", "constant"))
    shape = NUM_SAMPLES, max_atoms
    arguments = rng.integers(-min(4, 2 * max_atoms), max(1, num_constants), (*shape, 2))
    atoms = np.concatenate((rng.integers(0, num_predicates, (*shape, 1)), arguments), axis=2)
    num_atoms = rng.integers(1, min(4, max_atoms) + 1, NUM_SAMPLES)
    atoms[np.arange(max_atoms) >= num_atoms[:, None]] = PAD
    return torch.as_tensor(atoms.astype(np.int32), device=device)
