"""The repetition of an engine: two runs of the same candidates, equal up to the rounding of scores."""

from collections.abc import Collection

from kgverify.comparison.compare import Comparer
from kgverify.report.content import Determinism
from kgverify.runs.run import Run, build_trace
from kgverify.trace.model.columns import are_equal
from kgverify.trace.model.score_error import ScoreError
from kgverify.verification.rounding import EngineRun

TO_THE_BIT = "to the bit"


def judge_repetition(
    run: Run, sides: tuple[EngineRun, EngineRun], score_error: ScoreError, modulo: Collection[str] | None
) -> tuple[Determinism, tuple[str, ...]]:
    """Return whether each engine repeats itself, and why the verdict is INCONCLUSIVE if one does not.

    Lists, choices and outcomes must be equal, and scores within their bound. A choice between two scores closer than the
    bound is a near-tie, as it is between two engines.
    """
    answers: list[bool | None] = []
    within, reasons = [], []
    for side in sides:
        same, words, reason = _compare_runs(run, side, score_error, modulo)
        answers.append(same)
        within.append(words)
        reasons += [reason] if reason else []
    return Determinism(answers[0], answers[1], within[0], within[1]), tuple(reasons)


def _compare_runs(
    run: Run, side: EngineRun, score_error: ScoreError, modulo: Collection[str] | None
) -> tuple[bool | None, str, str]:
    if side.again is None:
        return None, "", ""
    if are_equal(side.trace.columns, side.again, equal_nan=True):
        return True, TO_THE_BIT, ""
    again = build_trace(run, side.engine, side.again, None)
    comparer = Comparer(side.trace, again, score_error=score_error, modulo=modulo)
    found = comparer.compare()
    if found.divergences:
        first = found.divergences[0]
        at = f"candidate {first.candidate}, {first.atom}" + (f", from step {first.step} on" if first.step >= 0 else "")
        return (
            False,
            "",
            (
                f"the {side.role} engine is not deterministic: two runs of the same candidates differ in"
                f" {len(found.divergences):,} of them, first in {first.field} of {at}"
            ),
        )
    largest = found.rounding.largest if found.rounding is not None else 0.0
    words = f"within {comparer.describe_difference(largest)}" if largest else TO_THE_BIT
    ties = f", with {len(found.near_ties):,} choices at near-ties" if found.near_ties else ""
    return True, words + ties, ""
