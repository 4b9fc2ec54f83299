"""The policy in several precisions: one for all scores, the others for close choices."""

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

import torch
from torch import Tensor

from kgverify.engines.compiled.stages.choose import Parameters
from kgverify.engines.compiled.tower.exact import EXACT
from kgverify.engines.compiled.tower.launch import build_tower_parameters, launch_tower
from kgverify.engines.compiled.tower.precision import FLOAT32, declare_error, draw_goals, sample_size
from kgverify.engines.policy import Policy

LEVELS: Final = {
    FLOAT32: (FLOAT32, EXACT),
    "bf16x3": ("bf16x3", EXACT),
    "fp16": ("fp16", "bf16x3", EXACT),
    "bf16": ("bf16", "bf16x3", EXACT),
}
"""The precisions of each option: the first for all scores, the others in turn for choices that are still close."""


class ScoreLevel(NamedTuple):
    """A policy in a precision. error: of its scores, in nats; 0 where it has not been measured."""

    precision: str
    parameters: Parameters
    error: float = 0.0


def build_levels(precision: str, policy: Policy, device: torch.device) -> tuple[ScoreLevel, ...]:
    """Return the levels of a precision, their errors not yet measured; none for `shortest`."""
    if policy.name != "two_tower":
        return ()
    return tuple(
        ScoreLevel(level, build_tower_parameters(policy, level, device, is_rounded=True)) for level in LEVELS[precision]
    )


def measure_errors(
    levels: Sequence[ScoreLevel], policy: Policy, max_atoms: int, device: torch.device
) -> tuple[ScoreLevel, ...]:
    """Measure the errors of the levels, with the launches of a tick, except that of the last one, which is exact."""
    if not levels:
        return ()
    num = sample_size(device)
    goals, resolvents = (draw_goals(policy, max_atoms, seed, device, num) for seed in (0, 1))

    def score(level: ScoreLevel, *, is_sparse: bool) -> Tensor:
        numbers = torch.arange(num, dtype=torch.int32, device=device)
        count = torch.full((1,), num, dtype=torch.int32, device=device)
        padded = level.parameters[0].shape[1]
        dtype = torch.float64 if level.precision == EXACT else torch.float32
        features = torch.empty((num, padded), dtype=dtype, device=device)
        scores = torch.empty(num, dtype=torch.float32, device=device)
        tower = partial(launch_tower, level.parameters, precision=level.precision, count=count, is_sparse=is_sparse)
        tower(goals, features, index=numbers)
        tower(resolvents, scores, index=numbers if is_sparse else None, features=features, slots=numbers)
        return scores

    exact = score(levels[-1], is_sparse=True)
    measured = []
    for number, level in enumerate(levels[:-1]):
        seen = float((score(level, is_sparse=number > 0) - exact).abs().max())
        measured.append(level._replace(error=declare_error(policy, seen, device)))
    return (*measured, levels[-1])
