"""Check whether each fault of a pair changes something that the other one leaves right, without any search."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from kgverify.comparison.step_view import StepReader, StepView
from kgverify.engines.protocol import Positions
from kgverify.ranking.draw import draw_candidates
from kgverify.runs.run import Run
from kgverify.trace.model.columns import CandidateSet

from .further_faults import Fault, Prover

OF_CANDIDATES: Final = "candidate"
"""The hook of faults that break whole candidates."""


def count_own(run: Run, faults: tuple[Fault, Fault, Fault], *, lockstep: bool) -> tuple[int, int]:
    """Return in how many steps the first fault changes what the second alone does not, and the reverse.

    faults: both, one by one, and as one

    Only steps from the goals of the sound engine count: without lockstep, those up to the first wrong one of a candidate.
    """
    sound = Prover(run.graph.program, run.limits, run.policy)
    candidates = draw_candidates(run.graph, run.split, run.queries, run.num_corruptions, run.seed)
    if faults[0].hook == OF_CANDIDATES:
        num = len(candidates.query)
        rows = [{i for i in range(num) if fault.holds(candidates, i, num)} for fault in faults[:2]]
        return len(rows[0] - rows[1]), len(rows[1] - rows[0])
    columns = sound.prove(candidates)
    reader = StepReader(columns)
    positions = [
        (row, i, [reader.goal_of(reader.first_step[row] + k) for k in range(i + 1)])
        for row, num in enumerate(columns.candidates.num_steps.tolist())
        for i in range(num)
    ]
    expected, first, second, both = (_step(run, fault, candidates, positions) for fault in (None, *faults))
    own = [0, 0]
    ended: set[int] = set()
    for i, (row, *_) in enumerate(positions):
        if row in ended:
            continue
        own[0] += both[i] != second[i]
        own[1] += both[i] != first[i]
        if both[i] != expected[i] and not lockstep:
            ended.add(row)
    return own[0], own[1]


def _step(
    run: Run, fault: Fault | None, candidates: CandidateSet, positions: Sequence[tuple[int, int, Any]]
) -> list[StepView]:
    """Take a step from each position, with a fault or without one."""
    engine = Prover(run.graph.program, run.limits, run.policy)
    engine.fault = fault
    goals = [goal for *_, visited in positions for goal in visited]
    columns = engine.step(
        Positions(
            candidates.take([row for row, *_ in positions]),
            np.array([depth for _, depth, _ in positions], np.uint16),
            np.array([len(visited) for *_, visited in positions], np.uint32),
            np.array([len(goal) for goal in goals], np.uint16),
            np.array([atom for goal in goals for atom in goal], np.int32).reshape(-1, 3),
        )
    )
    reader = StepReader(columns)
    return [reader.read(i) for i in range(len(positions))]
