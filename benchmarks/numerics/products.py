"""The policy's score with products of another precision: native in torch, emulated, or by a kernel of the evaluator."""

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from kgverify.engines.policy import Policy
from kgverify.errors import UserError
from kgverify.prover.execution.device import products_set_to
from kgverify.prover.stages.choose import Parameters, Score, build_parameters, score_two_tower
from kgverify.prover.tower.precision import PRECISIONS

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""(states [n, h], weight [k, h], bias [k]) -> [n, k]."""

TF32_BITS: Final = 10
"""Bits of the mantissa that TF32 keeps, out of 23."""


class PrecisionScore(NamedTuple):
    """A way to score. how: `native`, `emulated` or `kernel`."""

    precision: str
    how: str
    score: Score
    parameters: Parameters


class Products(TorchFunctionMode):
    """A mode in which linear layers use another product."""

    def __init__(self, product: Product) -> None:
        super().__init__()
        self._product = product

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the function."""
        if func is functional.linear:
            return self._product(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def make_score(product: Product) -> Score:
    """Return the evaluator's score with another product."""
    return _score_within(lambda: Products(product))


def _score_within(enter: Callable[[], AbstractContextManager[Any]]) -> Score:
    def score(parameters: Parameters, goals: Tensor, resolvents: Tensor, slot: Tensor) -> Tensor:
        with enter():
            return score_two_tower(parameters, goals, resolvents, slot)

    return score


def round_mantissa(values: Tensor, bits: int) -> Tensor:
    """Round float32 to a number of bits of mantissa, ties to even; NaN and infinity stay."""
    dropped = 23 - bits
    whole = values.contiguous().view(torch.int32)
    half = (1 << (dropped - 1)) - 1 + ((whole >> dropped) & 1)
    rounded = ((whole + half) & -(1 << dropped)).view(torch.float32)
    return torch.where(values.isfinite(), rounded, values)


def multiply_as_tf32(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply factors rounded as in TF32, and add in float32."""
    return functional.linear(round_mantissa(states, TF32_BITS), round_mantissa(weight, TF32_BITS), bias)


def multiply_split(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Split each factor into two bfloat16 numbers, and add three of the four products in float32."""
    high, weight_high = (part.bfloat16().float() for part in (states, weight))
    low, weight_low = (states - high).bfloat16().float(), (weight - weight_high).bfloat16().float()
    small = functional.linear(low, weight_high) + functional.linear(high, weight_low)
    return functional.linear(high, weight_high, bias) + small


def make_narrow_product(dtype: torch.dtype) -> Product:
    """Return the product of autocast: factors and result in the narrow type, everything else in float32."""

    def product(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        narrow = None if bias is None else bias.to(dtype)
        return functional.linear(states.to(dtype), weight.to(dtype), narrow).float()

    return product


def list_precision_scores(policy: Policy, device: torch.device) -> list[PrecisionScore]:
    """List the precisions below float64, from the most precise to the least, and on CUDA the evaluator's kernels."""
    parameters = build_parameters(policy, device, torch.float32)
    is_cuda = device.type == "cuda"
    in_tf32 = _score_within(lambda: products_set_to("high"))
    scores = [
        PrecisionScore(precision, how, score, parameters)
        for precision, how, score in (
            ("fp32", "native", _score_within(lambda: products_set_to("highest"))),
            ("bf16x3", "emulated", make_score(multiply_split)),
            ("tf32", "native", in_tf32) if is_cuda else ("tf32", "emulated", make_score(multiply_as_tf32)),
            ("fp16", "native", make_score(make_narrow_product(torch.float16))),
            ("bf16", "native", make_score(make_narrow_product(torch.bfloat16))),
        )
    ]
    if not is_cuda:
        return scores
    from kgverify.prover.tower.launch import build_tower_parameters, build_tower_score, can_run

    for precision in PRECISIONS if can_run(policy) else ():
        # fp16 cannot hold the weights of every policy.
        with suppress(UserError):
            held = build_tower_parameters(policy, precision, device)
            scores.append(PrecisionScore(precision, "kernel", build_tower_score(precision), held))
    return scores
