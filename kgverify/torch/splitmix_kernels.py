"""The splitmix64 step (Steele, Lea and Flood 2014) in Triton kernels, as in `kgverify.trace.model.digests`."""

import triton
import triton.language as tl

# Words are int64; products wrap around.
_GAMMA = tl.constexpr(0x9E3779B97F4A7C15 - (1 << 64))
_FIRST = tl.constexpr(0xBF58476D1CE4E5B9 - (1 << 64))
_SECOND = tl.constexpr(0x94D049BB133111EB - (1 << 64))


@triton.jit
def _shift(word, BITS: tl.constexpr):
    """Shift to the right, filling with zeros."""
    return (word >> BITS) & ((1 << (64 - BITS)) - 1)


@triton.jit
def mix(word):
    """Return the splitmix64 step of each word."""
    word = word + _GAMMA
    word = (word ^ _shift(word, 30)) * _FIRST
    word = (word ^ _shift(word, 27)) * _SECOND
    return word ^ _shift(word, 31)


@triton.jit
def fold(state, word):
    """Fold words into running digests."""
    return mix(state ^ mix(word))
