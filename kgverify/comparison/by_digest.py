"""Comparing steps by their digests, where a trace keeps no goals: what differs, and whether rounding alone explains it."""

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.locate import Difference
from kgverify.comparison.result import Level
from kgverify.comparison.sharing import DIGEST
from kgverify.comparison.view import StepView
from kgverify.program.stages import Stage
from kgverify.trace.model.columns import Columns, expand_rows, select_steps, starts_of
from kgverify.trace.model.digests import compute_digests
from kgverify.trace.model.levels import has_goals
from kgverify.trace.model.trace import Trace


def differing_columns(
    expected: Columns, actual: Columns, rows: tuple[NDArray[np.int64], NDArray[np.int64]]
) -> NDArray[np.bool_]:
    """bool: which pairs of steps differ in a column of the steps, or in the kind of a resolvent.

    A digest that cannot be computed from its columns does not vouch for them.
    """
    differs = np.zeros(len(rows[0]), bool)
    for name in expected.steps._fields[:-1]:
        differs |= getattr(expected.steps, name)[rows[0]] != getattr(actual.steps, name)[rows[1]]
    same = np.flatnonzero(~differs)
    owner = np.repeat(same, expected.steps.num_resolvents[rows[0][same]])
    kinds = [
        columns.resolvents.kind[expand_rows(starts_of(columns.steps.num_resolvents), own[same])]
        for columns, own in zip((expected, actual), rows, strict=True)
    ]
    differs[owner[kinds[0] != kinds[1]]] = True
    return differs


def digest_difference(expected: int, actual: int) -> Difference:
    """That two steps differ, of which no more is known: in some stage, the first one included."""
    return Difference(Stage.SELECT, DIGEST, f"{expected:016x}", f"{actual:016x}")


def level_without_goals(expected: StepView, actual: StepView, level: Level, *, is_same_digest: bool) -> Level:
    """How far the difference of two steps reaches whose goals are not known: by their clauses instead."""
    if level is not Level.ORDER or is_same_digest:
        return level
    clauses = [[r.clause for r in step.resolvents] for step in (expected, actual)]
    chosen = [
        side[step.choice] if 0 <= step.choice < len(side) else None
        for side, step in zip(clauses, (expected, actual), strict=True)
    ]
    if chosen[0] != chosen[1]:
        return Level.CHOICE
    return Level.ORDER if Counter(clauses[0]) == Counter(clauses[1]) else Level.RENAMING


def tie_gap(
    full: tuple[Trace, Trace], rows: tuple[int, int], digests: tuple[int, int], tolerance: float
) -> float | None:
    """The gap of the scores where another choice, within the tolerance, turns the one digest into the other; else None.

    full: the traces with whatever goals and scores they have; rows: of the step in each; tolerance: of a score
    """
    for side, other in ((0, 1), (1, 0)):
        trace = full[side]
        if not is_decidable(trace):
            continue
        columns = select_steps(trace.columns, np.array([rows[side]]))
        scores = columns.resolvents.score.astype(np.float64)
        choice = int(columns.steps.choice[0])
        if not 0 <= choice < len(scores):
            continue
        gaps = np.abs(scores - scores[choice])
        for index in np.flatnonzero(gaps <= 2 * tolerance).tolist():
            if index == choice:
                continue
            steps = columns.steps._replace(choice=np.array([index], np.int32))
            if int(compute_digests(columns._replace(steps=steps)).sequence[0]) == digests[other]:
                return float(gaps[index])
    return None


def is_decidable(trace: Trace) -> bool:
    """Whether the trace tells a near-tie from a divergence by itself."""
    return has_goals(trace.header.level) and "resolvents.score" in trace.fields
