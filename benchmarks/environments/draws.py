"""Random numbers that are functions of a key and of counters, so that a state can be set and a step repeated."""

from typing import Final

import torch
from torch import Tensor

# The constants and shifts of SplitMix64 (Steele, Lea and Flood 2014), as signed 64-bit numbers.
INCREMENT: Final = -0x61C8864680B583EB
MULTIPLIERS: Final = ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15))
LAST_SHIFT: Final = 31


def _shift_right(bits: Tensor, count: int) -> Tensor:
    """Shift without the sign, which torch has for no signed type."""
    return (bits >> count) & ((1 << (64 - count)) - 1)


def draw_bits(key: Tensor, *counters: Tensor | int) -> Tensor:
    """Return int64 [N]: 64 random bits for each key int64 [N] and its counters."""
    bits = key
    for counter in (*counters, 0):
        bits = bits + INCREMENT + counter
        for shift, multiplier in MULTIPLIERS:
            bits = (bits ^ _shift_right(bits, shift)) * multiplier
        bits = bits ^ _shift_right(bits, LAST_SHIFT)
    return bits


def draw_uniform(key: Tensor, *counters: Tensor | int) -> Tensor:
    """Return float64 [N] in [0, 1)."""
    return _shift_right(draw_bits(key, *counters), 11).to(torch.float64) / 2.0**53


def draw_below(bound: int, key: Tensor, *counters: Tensor | int) -> Tensor:
    """Return int64 [N] in [0, bound)."""
    return _shift_right(draw_bits(key, *counters), 1) % bound
