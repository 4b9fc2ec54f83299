"""Faults of the stages `score` and `choose`."""

import torch
from torch import Tensor

from kgverify.engines.compiled.stages.choose import Parameters
from kgverify.engines.compiled.state import GOAL, PAD, Choices
from kgverify.faults.fault import Plant


def round_to_bf16(plant: Plant) -> Plant:
    """Score in bfloat16: 8 significant bits."""
    sound = plant.stages.score

    def score(parameters: Parameters, goals: Tensor, resolvents: Tensor, slot: Tensor) -> Tensor:
        return sound(parameters, goals, resolvents, slot).bfloat16().float()

    return plant.with_stages(score=score)


def round_to_tf32(plant: Plant) -> Plant:
    """Score with 11 significant bits, as tensor cores multiply float32."""
    sound = plant.stages.score

    def score(parameters: Parameters, goals: Tensor, resolvents: Tensor, slot: Tensor) -> Tensor:
        fraction, exponent = torch.frexp(sound(parameters, goals, resolvents, slot))
        return torch.ldexp((fraction * 2048).round() / 2048, exponent)

    return plant.with_stages(score=score)


def divide_by_no_variables(plant: Plant) -> Plant:
    """Take a masked mean over a resolvent's variables: where it has none, 0 / 0."""
    sound = plant.stages.score

    def score(parameters: Parameters, goals: Tensor, resolvents: Tensor, slot: Tensor) -> Tensor:
        arguments = resolvents[..., 1:]
        num_variables = ((arguments < 0) & (arguments != PAD)).flatten(1).sum(1)
        return sound(parameters, goals, resolvents, slot) * (num_variables / num_variables)

    return plant.with_stages(score=score)


def keep_old_weights(plant: Plant) -> Plant:
    """Score with the weights of before the last update, here nine tenths of each."""
    sound = plant.stages.score

    def score(parameters: Parameters, goals: Tensor, resolvents: Tensor, slot: Tensor) -> Tensor:
        old = tuple(each * 0.9 if each.is_floating_point() else each for each in parameters)
        return sound(old, goals, resolvents, slot)

    return plant.with_stages(score=score)


def choose_last(plant: Plant) -> Plant:
    """Choose the highest index of equal scores."""
    sound = plant.stages.choose

    def choose(kind: Tensor, num_resolvents: Tensor, score: Tensor) -> Choices:
        choices = sound(kind, num_resolvents, score)
        last = score.shape[1] - 1 - score.flip(1).argmax(1)
        choice = torch.where((kind == GOAL) & (num_resolvents > 0), last, choices.choice)
        return Choices(choices.kind, choices.num_resolvents, choices.score, choice, choices.log_probability)

    return plant.with_stages(choose=choose)
