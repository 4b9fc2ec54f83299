"""A trace taken apart into positions, each of which lockstep compares by itself."""

import numpy as np

from kgverify.trace.model.columns import Columns


def lockstep_columns(columns: Columns) -> Columns:
    """A trace's steps as positions, one candidate with one step each: what lockstep compares with."""
    owner = np.repeat(np.arange(len(columns.candidates.query)), columns.candidates.num_steps)
    candidates = columns.candidates._replace(
        query=columns.candidates.query[owner],
        side=columns.candidates.side[owner],
        atom=columns.candidates.atom[owner],
        num_steps=np.ones(len(owner), np.uint32),
        outcome=columns.steps.outcome,
        is_limited=((columns.steps.dropped_atoms > 0) | (columns.steps.dropped_resolvents > 0)).astype(np.uint8),
        log_probability=np.zeros(len(owner)),
    )
    return columns._replace(candidates=candidates)
