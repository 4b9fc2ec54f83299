"""The scores of the policy in one precision, with those in float64 that decide close choices."""

from typing import NamedTuple

import torch
from torch import Tensor

from kgverify.engines.policy import Policy
from kgverify.prover.stages.choose import Parameters
from kgverify.prover.tower.launch import build_tower_parameters, launch_tower
from kgverify.prover.tower.portable import CONTEST, EXACT, score_contests
from kgverify.prover.tower.precision import declare_error, draw_goals, sample_size


class Scoring(NamedTuple):
    """A policy in a precision and in float64.

    error:  of its scores in the precision, in nats; 0 if not yet measured
    margin: of the difference between two scores of one goal; scores that are further apart are in the right order
    """

    precision: str
    parameters: Parameters
    exact: Parameters
    error: float = 0.0
    margin: float = 0.0


def build_scoring(precision: str, policy: Policy, device: torch.device) -> Scoring | None:
    """Return the scoring of a policy, its error not yet measured; None for `shortest`."""
    if policy.name != "two_tower":
        return None
    fast, exact = (build_tower_parameters(policy, each, device, is_rounded=True) for each in (precision, EXACT))
    return Scoring(precision, fast, exact)


def measure_error(scoring: Scoring, policy: Policy, max_atoms: int, device: torch.device) -> Scoring:
    """Measure the error and the margin, with the launches of a tick, on two resolvents of each goal of a sample."""
    num = sample_size(device)
    goals, resolvents = (draw_goals(policy, max_atoms, seed, device, num) for seed in (0, 1))
    numbers = torch.arange(num, dtype=torch.int32, device=device)
    count = torch.full((1,), num, dtype=torch.int32, device=device)
    features = torch.empty((num, scoring.parameters[0].shape[1]), dtype=torch.float32, device=device)
    launch_tower(scoring.parameters, goals, features, scoring.precision, index=numbers, count=count)

    def measure(resolvents: Tensor) -> Tensor:
        scores, exact = torch.empty((2, num), dtype=torch.float32, device=device)
        against = features, numbers
        launch_tower(scoring.parameters, resolvents, scores, scoring.precision, count=count, against=against)
        contests = torch.full((num, CONTEST), -1, dtype=torch.int32, device=device)
        contests[:, :2] = numbers[:, None]
        score_contests(scoring.exact, goals, resolvents, contests, count, exact, EXACT)
        error: Tensor = scores - exact
        return error

    first, second = measure(resolvents), measure(resolvents.roll(1, 0))
    error, of_difference = (
        declare_error(policy, float(seen.abs().max()), device)
        for seen in (torch.stack((first, second)), first - second)
    )
    # Two errors of opposite sign are the most; and a score in float64 is compared with others that have one error.
    return scoring._replace(error=error, margin=min(2 * error, max(error, of_difference)))
