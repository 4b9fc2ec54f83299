"""A recount of the first divergence of each cause, by a comparison that shares no code with the one that found it."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from kgverify.comparison.compare import Comparer
from kgverify.comparison.modulo import DUPLICATES, ORDER
from kgverify.comparison.result import NO_CANDIDATE, Cause, Divergence
from kgverify.garbage_collection import without_garbage_collection
from kgverify.trace.model.columns import starts_of
from kgverify.trace.model.levels import has_goals
from kgverify.verification.adding_up import require

MAX_RECOUNTED: Final = 32
"""The causes whose first divergence is recounted."""


@without_garbage_collection()
def recount_causes(parts: Sequence[Comparer], divergences: Sequence[Divergence], causes: Sequence[Cause]) -> None:
    """InternalError unless the reference's comparison finds the first divergence of each cause at the same step.

    All steps before it are equal, and this one differs. What is not compared in the candidates as they were recorded is
    not recounted: ranks, steps behind near-ties, candidates that only one side has, and traces without goals.

    parts: what the divergences were found by; the first one compared the runs as a whole
    """
    firsts = [divergences[cause.first] for cause in causes[:MAX_RECOUNTED]]
    for comparer in parts if firsts else ():
        rows = np.array([each.candidate for each in firsts])
        if comparer.lockstep:
            # Its candidates are the steps of the run.
            starts = starts_of(parts[0].expected.columns.candidates.num_steps)
            rows = starts[rows] + [each.step for each in firsts]
        _recount(comparer, set(rows.tolist()))


def _recount(comparer: Comparer, wanted: set[int]) -> None:
    listed = {
        each.candidate: each
        for each in comparer.comparison.divergences
        if each.candidate in wanted and NO_CANDIDATE not in (each.expected, each.actual)
    }
    # The reference's comparison knows no repetitions.
    if not listed or DUPLICATES in comparer.modulo or not all(has_goals(s.header.level) for s in comparer.sources):
        return
    # A saved report is shown without the reference.
    from kgverify.engines.reference.comparison import compare_again

    rows = np.array(sorted(listed))
    again = compare_again(*comparer.load_pairs(rows), comparer.score_tolerance, lockstep=comparer.lockstep)
    for row, (one, other, second) in zip(rows.tolist(), again, strict=True):
        found = listed[row]
        # A tie is judged in the order as recorded, which the reference's comparison does not see.
        is_tie = ORDER in comparer.modulo and "steps.choice" in (found.field, second.field if second else "")
        if is_tie or one != other:
            continue
        require(
            second is not None and second.gap is None and second.step == found.step,
            f"candidate {row}: the reference's comparison finds {second}, and step {found.step} is reported",
        )
