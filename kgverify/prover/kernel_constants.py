"""The named values of `state.py` as constants of Triton kernels."""

import triton.language as tl

from kgverify.prover import state

PAD = tl.constexpr(state.PAD)
NO_CANDIDATE = tl.constexpr(state.NO_CANDIDATE)
GOAL, TRUE, FALSE = tl.constexpr(state.GOAL), tl.constexpr(state.TRUE), tl.constexpr(state.FALSE)
OPEN, PROVED = tl.constexpr(state.OPEN), tl.constexpr(state.PROVED)
FAILED, DEPTH_LIMIT = tl.constexpr(state.FAILED), tl.constexpr(state.DEPTH_LIMIT)
STOPPED = tl.constexpr(state.STOPPED)
RULE, FACT = tl.constexpr(state.RULE), tl.constexpr(state.FACT)
