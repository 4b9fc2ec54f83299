"""The ends of candidates that were proved without recording their steps."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.trace.model.columns import Digests

STOPPED: Final = 4
"""The ending of a derivation that was stopped below its floor: no `Outcome`, and in no trace and no report."""


class Results(NamedTuple):
    """The ends of candidates: outcome int32 [N], is_limited bool [N], log_probability float64 [N].

    outcome: an `Outcome` or `STOPPED`; the other columns of a stopped derivation are those of its last step
    """

    outcome: NDArray[np.int32]
    is_limited: NDArray[np.bool_]
    log_probability: NDArray[np.float64]


class StepDigests(NamedTuple):
    """The digests of the steps of candidates, one candidate after the other. num_steps: uint32 [N], of each."""

    num_steps: NDArray[np.uint32]
    digests: Digests


class Evaluation(NamedTuple):
    """The ends of candidates, and the closeness of choices that may be made again in a higher precision.

    num_choices:  choices between two resolvents or more
    num_rescored: those of them made again
    smallest_gap: between the two highest scores (in modes `fused` and `native`, of different resolvents), nats; inf without
                  a choice
    digests:      None unless requested

    In float32, ticks of stages measure no gaps (0, 0, inf).
    """

    results: Results
    num_choices: int = 0
    num_rescored: int = 0
    smallest_gap: float = float("inf")
    digests: StepDigests | None = None


def no_results() -> Results:
    """Return the results of no candidates."""
    return Results(np.zeros(0, np.int32), np.zeros(0, np.bool_), np.zeros(0, np.float64))


def no_digests() -> StepDigests:
    """Return the digests of no candidates."""
    nothing = np.zeros(0, np.uint64)
    return StepDigests(np.zeros(0, np.uint32), Digests(nothing, nothing, nothing))


def join_digests(parts: Sequence[StepDigests]) -> StepDigests:
    """Concatenate the digests of some candidates after others."""
    if len(parts) == 1:
        return parts[0]
    counts = np.concatenate([part.num_steps for part in parts])
    return StepDigests(counts, Digests(*map(np.concatenate, zip(*(part.digests for part in parts), strict=True))))
