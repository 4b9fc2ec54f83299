"""The policy's score with products of another precision: torch's own, an emulation, or a kernel of the evaluator."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from kgverify.engines.compiled.execution.device import products_set_to
from kgverify.engines.compiled.stages.choose import Parameters, Score, build_parameters, score_two_tower
from kgverify.engines.policy import Policy

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""(states [n, h], weight [k, h], bias [k]) -> [n, k]."""

TF32_BITS: Final = 10
"""Of a mantissa that TF32 keeps of the 23."""


class PrecisionScore(NamedTuple):
    """A way to score. how: `native`, `emulated` or `kernel`"""

    precision: str
    how: str
    score: Score
    parameters: Parameters


class Products(TorchFunctionMode):
    """Linear layers made by a product of one's own; everything else as it is."""

    def __init__(self, product: Product) -> None:
        super().__init__()
        self._product = product

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the function."""
        if func is functional.linear:
            return self._product(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def score_with(product: Product) -> Score:
    """The evaluator's score with other products."""

    def score(parameters: Parameters, goals: Tensor, resolvents: Tensor, slot: Tensor) -> Tensor:
        with Products(product):
            return score_two_tower(parameters, goals, resolvents, slot)

    return score


def round_mantissa(values: Tensor, bits: int) -> Tensor:
    """float32 rounded to so many bits of mantissa, ties to even; NaN and infinity as they are."""
    dropped = 23 - bits
    whole = values.contiguous().view(torch.int32)
    half = (1 << (dropped - 1)) - 1 + ((whole >> dropped) & 1)
    rounded = ((whole + half) & -(1 << dropped)).view(torch.float32)
    return torch.where(values.isfinite(), rounded, values)


def tf32_product(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Factors rounded as TF32 rounds them, added in float32."""
    return functional.linear(round_mantissa(states, TF32_BITS), round_mantissa(weight, TF32_BITS), bias)


def split_product(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Each factor as the sum of two numbers of bfloat16, three of the four products added in float32."""
    high, weight_high = (part.bfloat16().float() for part in (states, weight))
    low, weight_low = (states - high).bfloat16().float(), (weight - weight_high).bfloat16().float()
    small = functional.linear(low, weight_high) + functional.linear(high, weight_low)
    return functional.linear(high, weight_high, bias) + small


def narrow_product(dtype: torch.dtype) -> Product:
    """As autocast makes it: factors and result of the narrow type, everything else in float32."""

    def product(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        narrow = None if bias is None else bias.to(dtype)
        return functional.linear(states.to(dtype), weight.to(dtype), narrow).float()

    return product


def native_tf32(parameters: Parameters, goals: Tensor, resolvents: Tensor, slot: Tensor) -> Tensor:
    """With TF32 allowed."""
    with products_set_to("high"):
        return score_two_tower(parameters, goals, resolvents, slot)


def native_float32(parameters: Parameters, goals: Tensor, resolvents: Tensor, slot: Tensor) -> Tensor:
    """With nothing else allowed."""
    with products_set_to("highest"):
        return score_two_tower(parameters, goals, resolvents, slot)


def precision_scores(policy: Policy, device: torch.device) -> list[PrecisionScore]:
    """The rungs below float64, from the most precise to the least; on CUDA the evaluator's kernels, too."""
    parameters = build_parameters(policy, device, torch.float32)

    def rung(precision: str, how: str, score: Score) -> PrecisionScore:
        return PrecisionScore(precision, how, score, parameters)

    is_cuda = device.type == "cuda"
    scores = [rung("fp32", "native", native_float32)]
    scores.append(rung("bf16x3", "emulated", score_with(split_product)))
    scores.append(
        rung("tf32", "native", native_tf32) if is_cuda else rung("tf32", "emulated", score_with(tf32_product))
    )
    scores.append(rung("fp16", "native", score_with(narrow_product(torch.float16))))
    scores.append(rung("bf16", "native", score_with(narrow_product(torch.bfloat16))))
    return scores + (_kernel_scores(policy, device) if is_cuda else [])


def _kernel_scores(policy: Policy, device: torch.device) -> list[PrecisionScore]:
    from kgverify.engines.compiled.tower.launch import build_tower_parameters, build_tower_score, can_run
    from kgverify.engines.compiled.tower.precision import PRECISIONS
    from kgverify.errors import UserError

    if not can_run(policy):
        return []
    found = []
    for precision in PRECISIONS:
        try:
            parameters = build_tower_parameters(policy, precision, device)
        except UserError:
            # fp16, for weights that it cannot hold.
            continue
        found.append(PrecisionScore(precision, "kernel", build_tower_score(precision), parameters))
    return found
