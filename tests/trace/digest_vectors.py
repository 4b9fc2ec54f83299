"""Test vectors of digests: columns that a formula gives, and what their digests must be.

The same functions write digests and verify them, so that a mistake in them would go unnoticed but for these fixed numbers.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from kgverify.trace.model.columns import Candidates, Columns, Resolvents, Steps, no_stage_items
from kgverify.trace.model.digests import compute_digests, root_digest

NUM_CANDIDATES: Final = 96
VECTORS: Final[dict[int, tuple[int, int, int, int]]] = {
    12: (14738480194787597665, 5363628852255404790, 3542236122397730529, 9249753702896105673),
    31: (1560275654426034883, 5913154202392271693, 647926457136869664, 14394392727414856893),
}
"""The sums of the three digests over all steps, and the root, each modulo 2^64, by the bits of the largest identifier."""


def build_columns(bits: int) -> Columns:
    """Return steps of every outcome, goals in any numbering of variables, and identifiers of at most some bits."""
    rows = np.arange(NUM_CANDIDATES)
    num_steps = _draw(rows, 1, 4)
    steps = np.arange(int(num_steps.sum()))
    step_atoms, num_resolvents = 1 + _draw(steps, 2, 4), 1 + _draw(steps, 3, 9)
    resolvents = np.arange(int(num_resolvents.sum()))
    kind = np.maximum(_draw(resolvents, 4, 6) - 3, 0)
    num_atoms = np.where(kind == 0, 1 + _draw(resolvents, 5, 4), 0)
    return Columns(
        Candidates(
            query=_draw(rows, 6, 1 << bits).astype(np.int32),
            side=_draw(rows, 7, 2).astype(np.int8),
            atom=_atoms(NUM_CANDIDATES, 8, bits),
            num_steps=num_steps.astype(np.uint32),
            outcome=_draw(rows, 9, 4).astype(np.int8),
            is_limited=_draw(rows, 10, 2).astype(np.uint8),
            log_probability=np.zeros(NUM_CANDIDATES),
        ),
        Steps(
            depth=_draw(steps, 11, 1 << 16).astype(np.uint16),
            num_atoms=step_atoms.astype(np.uint16),
            num_resolvents=num_resolvents.astype(np.uint32),
            dropped_atoms=_draw(steps, 12, 1 << bits).astype(np.uint32),
            dropped_resolvents=_draw(steps, 13, 1 << bits).astype(np.uint32),
            choice=(_draw(steps, 14, 1 << 20) % num_resolvents).astype(np.int32),
            outcome=_draw(steps, 15, 4).astype(np.int8),
            goal_atoms=_atoms(int(step_atoms.sum()), 16, bits),
        ),
        Resolvents(
            kind=kind.astype(np.uint8),
            num_atoms=num_atoms.astype(np.uint16),
            origin_kind=np.zeros(len(resolvents), np.uint8),
            origin=np.zeros(len(resolvents), np.int32),
            score=np.zeros(len(resolvents)),
            atoms=_atoms(int(num_atoms.sum()), 17, bits),
        ),
        no_stage_items(len(steps)),
    )


def compute_vector(columns: Columns) -> tuple[int, ...]:
    """Return the sums of the digests of all steps and the root, modulo 2^64."""
    digests = compute_digests(columns)
    sums = (int(each.sum(dtype=np.uint64)) for each in digests)
    return (*sums, root_digest(columns.candidates, digests.sequence))


def _draw(rows: NDArray[np.int64], column: int, num: int) -> NDArray[np.int64]:
    """Return a number below another for each row, by squares modulo a prime."""
    state = (rows * 7919 + column * 104729 + 1) % 2147483629
    for _ in range(3):
        state = (state * state + 1) % 2147483629
    return state % num


def _atoms(num: int, column: int, bits: int) -> NDArray[np.int32]:
    """Return atoms, int32 [n, 3]: constants of few and many bits, and five variables, 64 apart for more than 12 bits."""
    rows = np.arange(3 * num)
    values = _draw(rows, column, 1 << bits) >> np.where(_draw(rows, column + 100, 4) == 0, bits - 4, 0)
    is_variable = (rows % 3 != 0) & (_draw(rows, column + 200, 3) == 0)
    return (
        np.where(is_variable, -1 - (bits // 12) ** 6 * _draw(rows, column + 300, 5), values)
        .reshape(-1, 3)
        .astype(np.int32)
    )
