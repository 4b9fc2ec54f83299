"""The known-answer test of stages with inputs as no small run has them: their outputs are worked out by hand.

A pool has candidates beyond 16 bits, a position has depth 300, goals have as many variables as limits allow, and close choices
are made again in a higher precision, of which one does not fit the window.
"""

from functools import cache
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from kgverify import Limits
from kgverify.engines.protocol import Positions
from kgverify.errors import InternalError
from kgverify.program.limits import MAX_ATOMS
from kgverify.prover.execution.device import single_thread
from kgverify.prover.stages.choose import Rescoring, rescore
from kgverify.prover.stages.recycle import recycle
from kgverify.prover.stages.resolve import rename
from kgverify.prover.state import (
    DEPTH_LIMIT,
    FAILED,
    GOAL,
    NO_CANDIDATE,
    OPEN,
    PAD,
    PROVED,
    Layout,
    Rows,
)
from kgverify.prover.tick.tick import derivations_at, empty_derivations, empty_pool
from kgverify.trace.model.columns import CandidateSet

_CPU: Final = torch.device("cpu")
_LARGE: Final = 70_001
"""The candidates of a pool."""
_ENDED: Final = (69_990, 69_998, 66_000)
"""Those whose derivations end."""
_FREE: Final = -torch.inf


@cache
def check_known_stages() -> None:
    """InternalError unless each stage has its known outputs."""
    with single_thread(), torch.inference_mode():
        _check_recycle()
        _check_positions()
        _check_rename()
        _check_rescore()


def _check_recycle() -> None:
    """Let three slots of four end at the end of a pool, where two candidates are left."""
    layout = Layout(slots=4, atoms=2, resolvents=1, match_window=1, score_window=1, pool=_LARGE)
    number = torch.arange(_LARGE, dtype=torch.int32)
    query = torch.stack((number % 7, number, number * 3), 1)
    size, next_index = torch.tensor(_LARGE), torch.tensor(_LARGE - 2)
    pool = empty_pool(layout, _CPU)._replace(query=query, size=size, next_index=next_index)
    outcomes = PROVED, FAILED, DEPTH_LIMIT
    derivations = empty_derivations(layout, 3, _CPU)._replace(
        pool_index=torch.tensor([_ENDED[0], 5, *_ENDED[1:]]),
        query=query[:4],
        outcome=torch.tensor([outcomes[0], OPEN, *outcomes[1:]], dtype=torch.int32),
        is_limited=torch.tensor([True, True, False, True]),
        log_probability=torch.arange(4).double() / -3,
    )
    stored, taken = recycle(pool, derivations)
    ended = torch.tensor(_ENDED)
    results = stored.outcome[ended], stored.is_limited[ended], stored.log_probability[ended]
    for found, known in zip(results, (outcomes, (True, False, True), (0, -2 / 3, -1)), strict=True):
        _require("recycle", found, known)
    _require("recycle", stored.next_index, _LARGE)
    _require("recycle", stored.outcome.count_nonzero() - sum(each != 0 for each in outcomes), 0)
    _require("recycle", taken.pool_index, (_LARGE - 2, 5, _LARGE - 1, NO_CANDIDATE))
    _require("recycle", taken.query[:3], query[torch.tensor([_LARGE - 2, 1, _LARGE - 1])])
    _require("recycle", taken.goal[[0, 2], 0], query[-2:])
    _require("recycle", taken.log_probability[:3], (0, -1 / 3, 0))


def _check_positions() -> None:
    """Put two positions into three slots: one behind 300 other goals, and one of depth 17 that knows one other goal."""
    num, depth = 301, 17
    layout = Layout(slots=3, atoms=2, resolvents=1, match_window=1, score_window=1, pool=3)
    number = np.arange(num + 2)
    atoms = np.column_stack((number % 7, number, -1 - number * 0)).astype(np.int32)
    nobody = np.zeros(2, np.int32)
    positions = Positions(
        CandidateSet(nobody, nobody.astype(np.int8), atoms[:2]),
        np.array([num - 1, depth], np.uint16),
        np.array([num, 2], np.uint32),
        np.ones(num + 2, np.uint16),
        atoms,
    )
    found = derivations_at(positions, layout, Limits(max_depth=num), _CPU)
    _require("recycle", found.depth[:2], (num - 1, depth))
    _require("recycle", found.pool_index, (0, 1, NO_CANDIDATE))
    _require("recycle", found.query[:2], atoms[:2])
    _require("recycle", found.goal[:2, 0], atoms[[num - 1, num + 1]])
    _require("recycle", found.visited[0, :, 0], atoms[:num])
    _require("recycle", found.visited[1, :2, 0], atoms[num:])
    _require("recycle", found.outcome[:2], (OPEN, OPEN))


def _check_rename() -> None:
    """Give numbers to the variables of the longest goals, and of one in which a variable and a constant occur again."""
    many = [[3, -5 - 2 * i, -6 - 2 * i] for i in range(MAX_ATOMS)]
    turned = [[3, -80 + 2 * i, -80 + 2 * i + 1] for i in range(MAX_ATOMS)]
    numbered = [[3, -1 - 2 * i, -2 - 2 * i] for i in range(MAX_ATOMS)]
    free = [[PAD] * 3] * (MAX_ATOMS - 3)
    again, known = [[0, -9, 7], [1, 7, -4], [2, -9, -4]], [[0, -1, 7], [1, 7, -2], [2, -1, -2]]
    goals = torch.tensor([many, turned, again + free], dtype=torch.int32)
    _require("rename", rename(goals), [numbered, numbered, known + free])


def _check_rescore() -> None:
    """Make close choices again where scores within 1 may be in the wrong order: those of two slots, and not of a third.

    The exact scores are eighths. Seven rows contend, of which the window holds six.
    """
    scores = [[0, -0.75, _FREE], [-2, 0, _FREE], [0, _FREE, _FREE], [0, -0.25, -5], [0, -0.125, -0.25]]
    counts = torch.tensor([2, 2, 1, 3, 3])
    slot = torch.repeat_interleave(torch.arange(5), counts)
    atoms = torch.zeros(len(slot), 1, 3, dtype=torch.int32)
    atoms[:, 0, 1] = torch.arange(len(slot))

    def score(parameters: Any, goals: Tensor, atoms: Tensor, slots: Tensor) -> Tensor:
        return atoms[:, 0, 1] / 8.0

    rescoring = Rescoring(score, 0, error=0.5, window=6)
    rows = Rows(slot, torch.ones(len(slot), dtype=torch.bool), atoms, counts.cumsum(0) - counts)
    kind, taken = torch.full((5,), GOAL, dtype=torch.int32), torch.ones(5, dtype=torch.bool)
    goals = torch.zeros(5, 1, 3, dtype=torch.int32)
    found, is_taken, gaps = rescore(rescoring, (), goals, rows, torch.tensor(scores), kind, taken)
    _require("rescore", is_taken, (True, True, True, True, False))
    again = [[0, 1 / 8, _FREE], scores[1], scores[2], [5 / 8, 6 / 8, -5]]
    _require("rescore", found[:4], again)
    _require("rescore", torch.stack((gaps.num_choices, gaps.num_rescored)), (3, 2))
    _require("rescore", gaps.smallest, 0.25)


def _require(stage: str, found: Tensor, known: Any) -> None:
    if not np.array_equal(found.numpy(), np.asarray(known)):
        raise InternalError(f"the stage {stage} gives wrong outputs for known inputs")
