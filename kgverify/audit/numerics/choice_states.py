"""The states between which a run chose, which the policy scores, taken from its columns."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.engines.compiled.state import PAD
from kgverify.program.outcomes import GoalKind
from kgverify.trace.model.columns import Columns, starts_of


class ChoiceStates(NamedTuple):
    """Every step of a run with two resolvents or more, G of them, with all R resolvents.

    goal:      int32 [G, A, 3]  padded with PAD
    resolvent: int32 [R, A, 3]
    slot:      int64 [R]        the goal of each resolvent
    first:     int64 [G + 1]    where the resolvents of each goal begin
    candidate: int64 [G]
    step:      int64 [G]
    """

    goal: NDArray[np.int32]
    resolvent: NDArray[np.int32]
    slot: NDArray[np.int64]
    first: NDArray[np.int64]
    candidate: NDArray[np.int64]
    step: NDArray[np.int64]


def collect_choice_states(columns: Columns, atoms: int) -> ChoiceStates:
    """Collect the choices of a run. atoms: the length to which goals are padded."""
    steps, resolvents = columns.steps, columns.resolvents
    num_steps = columns.candidates.num_steps.astype(np.int64)
    owner = np.repeat(np.arange(len(num_steps)), num_steps)
    ordinal = np.arange(len(owner)) - starts_of(num_steps)[owner]
    num_resolvents = steps.num_resolvents.astype(np.int64)
    chooses = num_resolvents > 1
    is_of_choice = np.repeat(chooses, num_resolvents) & (resolvents.kind == GoalKind.GOAL)
    goal = _pad(steps.num_atoms, steps.goal_atoms, chooses, atoms)
    resolvent = _pad(resolvents.num_atoms, resolvents.atoms, is_of_choice, atoms)
    counts = num_resolvents[chooses]
    return ChoiceStates(
        goal, resolvent, np.repeat(np.arange(len(counts)), counts), starts_of(counts), owner[chooses], ordinal[chooses]
    )


def _pad(
    num_atoms: NDArray[np.uint16], rows: NDArray[np.int32], picked: NDArray[np.bool_], atoms: int
) -> NDArray[np.int32]:
    """Pad the picked goals of a ragged column to int32 [n, A, 3]."""
    num = num_atoms.astype(np.int64)
    owner = np.repeat(np.arange(len(num)), num)
    column = np.arange(len(owner)) - starts_of(num)[owner]
    wanted = picked[owner]
    row_of = np.cumsum(picked) - 1
    padded = np.full((int(picked.sum()), atoms, 3), PAD, np.int32)
    padded[row_of[owner[wanted]], column[wanted]] = rows[wanted]
    return padded
