"""Steps of the shape that was measured on real graphs: about 8 resolvents a step, 65 in one of a hundred, 360 bytes."""

import numpy as np
from numpy.typing import NDArray

from kgverify.trace.model.columns import Candidates, Columns, Resolvents, Steps

NUM_PREDICATES, NUM_CONSTANTS = 12, 3000


def make_steps(num_steps: int, seed: int = 0, *, steps_per_candidate: int = 10) -> Columns:
    """Make steps, in candidates of a given number of steps each; variables numbered by first appearance, as a prover does."""
    random = np.random.default_rng(seed)
    num_candidates = num_steps // steps_per_candidate
    num_steps = num_candidates * steps_per_candidate
    num_resolvents = np.minimum(random.lognormal(1.35, 1.25, num_steps), 120).astype(np.uint32)
    r = int(num_resolvents.sum())
    goal_sizes = random.choice(np.arange(1, 7, dtype=np.uint16), num_steps, p=[0.2, 0.25, 0.25, 0.15, 0.1, 0.05])
    kind = (random.random(r) < 0.25).astype(np.uint8)
    sizes = np.where(kind == 0, random.choice(np.arange(1, 7), r, p=[0.2, 0.3, 0.2, 0.15, 0.1, 0.05]), 0)

    def atoms(counts: NDArray[np.integer]) -> NDArray[np.int32]:
        rows = np.empty((int(counts.sum()), 3), np.int32)
        rows[:, 0] = random.integers(0, NUM_PREDICATES, len(rows))
        rows[:, 1:] = random.integers(0, NUM_CONSTANTS, (len(rows), 2))
        # A chain of variables, one more with each atom.
        position = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        is_open = random.random(len(counts)) < 0.7
        is_variable = np.repeat(is_open, counts)
        last = position == np.repeat(counts, counts) - 1
        rows[is_variable & (position > 0), 1] = -position[is_variable & (position > 0)]
        rows[is_variable & ~last, 2] = -1 - position[is_variable & ~last]
        return rows

    return Columns(
        Candidates(
            np.arange(num_candidates, dtype=np.int32),
            np.zeros(num_candidates, np.int8),
            random.integers(0, NUM_PREDICATES, (num_candidates, 3)).astype(np.int32),
            np.full(num_candidates, steps_per_candidate, np.uint32),
            np.ones(num_candidates, np.int8),
            np.zeros(num_candidates, np.uint8),
            random.random(num_candidates),
        ),
        Steps(
            np.tile(np.arange(steps_per_candidate, dtype=np.uint16), num_candidates),
            goal_sizes,
            num_resolvents,
            np.zeros(num_steps, np.uint32),
            np.zeros(num_steps, np.uint32),
            random.integers(0, 3, num_steps).astype(np.int32),
            np.zeros(num_steps, np.int8),
            atoms(goal_sizes),
        ),
        Resolvents(
            kind,
            sizes.astype(np.uint16),
            np.ones(r, np.uint8),
            np.zeros(r, np.int32),
            random.random(r).astype(np.float32),
            atoms(sizes),
        ),
    )
