"""Comparison of two runs of the same candidates by one engine, and of single steps."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from kgverify.comparison.comparable import Numbering
from kgverify.comparison.compare import Comparer, Options
from kgverify.comparison.equality import Equality
from kgverify.comparison.locate import Difference, locate_difference
from kgverify.comparison.result import Divergence
from kgverify.comparison.step_view import StepView
from kgverify.laws.case import Case, Finding
from kgverify.program.outcomes import Stage
from kgverify.step.plain_step import Taken
from kgverify.trace.model.columns import Columns, are_equal
from kgverify.trace.model.digests import compute_digests
from kgverify.trace.model.score_tolerance import ScoreTolerance
from kgverify.trace.model.trace import Trace

_EXACT: Final = Equality(modulo=())


def differing(
    case: Case,
    actual: Columns,
    stage: Stage,
    expected: Columns | None = None,
    *,
    skeleton: Trace | None = None,
    exactly: bool = False,
    lockstep: bool = False,
) -> Iterator[Finding]:
    """Yield the first difference of each derivation from another run of the same candidates.

    Scores may differ by the engine's rounding error on both sides. Nothing is reported after a choice between scores
    that are closer than that.

    actual:   the columns of the other run
    expected: the columns to compare with; by default those of the case
    skeleton:    a trace without candidates, if the other run's program numbers symbols differently
    exactly:  whether scores must be equal
    lockstep: whether each candidate is a single position from which one step was taken
    """
    expected, numbering = expected or case.columns, Numbering(case.trace, skeleton or case.trace)
    if are_equal(expected, numbering.convert_columns(1, actual)):
        # Comparing takes longer than a small run.
        return
    if skeleton is None and (misplaced := case.find_misplaced(expected.candidates, actual.candidates)):
        yield from misplaced
        return
    sides = [
        replace(trace, columns=columns, digests=compute_digests(columns))
        for trace, columns in ((case.trace, expected), (skeleton or case.trace, actual))
    ]
    tolerance = ScoreTolerance(0.0 if exactly else 2 * case.rounding())
    comparer = Comparer(sides[0], sides[1], Options(lockstep=lockstep, equality=_EXACT, tolerance=tolerance))
    for each in comparer.compare().divergences:
        yield _find((each.candidate, each.step), stage, each)


def differing_step(
    case: Case, at: tuple[int, int], stage: Stage, expected: StepView, actual: StepView
) -> Iterator[Finding]:
    """Yield the first difference of a step's resolvents, including their clauses, or of the numbers of dropped ones."""
    alike = actual._replace(goal=expected.goal, depth=expected.depth, choice=expected.choice, outcome=expected.outcome)
    found = locate_difference(expected, alike, case.names, False, math.inf)
    if found is not None:
        finding = _find(at, stage, found)
        is_other = actual.goal != expected.goal
        yield finding._replace(field=f"{finding.field} of {case.names.goal(actual.goal)}") if is_other else finding


def describe_dropped(step: StepView | Taken) -> str:
    """Describe how many resolvents a step has dropped."""
    return f"{step.dropped_atoms} dropped for their atoms, {step.dropped_resolvents} beyond max_resolvents"


def _find(at: tuple[int, int], stage: Stage, found: Divergence | Difference) -> Finding:
    expected, actual = (
        "; ".join(each) if isinstance(each, list) else str(each) for each in (found.expected, found.actual)
    )
    return Finding(*at, stage, found.field.rpartition(".")[2], expected, actual)
