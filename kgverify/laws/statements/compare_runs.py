"""Comparison of two runs of the same candidates by one engine."""

from collections.abc import Iterator
from itertools import pairwise, zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.step_view import Names, StepView, outcome_name
from kgverify.errors import count_of
from kgverify.laws.case import Case, Finding, read_steps
from kgverify.program.stages import Stage
from kgverify.trace.model.columns import Candidates, Columns, starts_of

LOG_PROBABILITY_ERROR = 1e-6
"""The tolerance of a step's log-probability, in nats, beyond the effect of the scores' errors."""


def differing(
    case: Case, actual: Columns, stage: Stage, expected: Columns | None = None, *, exactly: bool = False
) -> Iterator[Finding]:
    """Yield the first difference of each derivation from another run of the same candidates.

    Scores may differ by the engine's declared error on both sides. Nothing is reported from a choice on whose scores are
    closer than that.

    expected: the columns to compare with; all of the case if not given
    exactly:  whether to allow no difference
    """
    expected = expected or case.columns
    error = 0.0 if exactly else 2 * case.score_error
    if is_same(expected, actual, error):
        return
    num = len(expected.candidates.query), len(actual.candidates.query)
    if num[0] != num[1]:
        yield Finding(-1, -1, Stage.RECYCLE, "candidates", count_of(num[0], "candidate"), count_of(num[1], "candidate"))
        return
    left, right = _group_steps(expected), _group_steps(actual)
    for row in range(num[0]):
        both = (expected.candidates, actual.candidates), (left[row], right[row])
        found = _first_difference(*both, row, error, case.names)
        if found is not None:
            yield Finding(row, found[0], stage, *found[1:])


def _group_steps(columns: Columns) -> list[list[StepView]]:
    """Return the steps of each candidate."""
    steps = read_steps(columns)
    return [steps[a:b] for a, b in pairwise(starts_of(columns.candidates.num_steps).tolist())]


def is_same(expected: Columns, actual: Columns, error: float) -> bool:
    """Return whether all columns are equal, within the error of scores and its effect on log-probabilities."""
    most_steps = int(expected.candidates.num_steps.max(initial=1))
    allowed = {"score": error, "log_probability": _log_probability_error(error, most_steps)}
    levels: Any = zip(expected, actual, strict=True)
    return all(
        left.shape == right.shape and _is_close(left, right, allowed.get(name, 0.0))
        for level, other in levels
        for name, left, right in zip(level._fields, level, other, strict=True)
    )


def _log_probability_error(error: float, num_steps: int) -> float:
    # The log-softmax moves by at most the error of the chosen score and that of the highest ones.
    return num_steps * (2 * error + (LOG_PROBABILITY_ERROR if error else 0.0))


def _is_close(left: NDArray[Any], right: NDArray[Any], allowed: float) -> bool:
    if not allowed:
        return np.array_equal(left, right, equal_nan=left.dtype.kind == "f")
    return bool(np.allclose(left, right, rtol=0, atol=allowed, equal_nan=True))


def _first_difference(
    candidates: tuple[Candidates, Candidates],
    steps: tuple[list[StepView], list[StepView]],
    row: int,
    error: float,
    names: Names,
) -> tuple[int, str, str, str] | None:
    a, b = candidates
    if (a.query[row], a.side[row], *a.atom[row]) != (b.query[row], b.side[row], *b.atom[row]):
        return -1, "candidate", names.atom(tuple(a.atom[row].tolist())), names.atom(tuple(b.atom[row].tolist()))
    for number, (one, other) in enumerate(zip_longest(*steps)):
        if one is None or other is None:
            return number, "steps", count_of(len(steps[0]), "step"), count_of(len(steps[1]), "step")
        found = difference_of_steps(one, other, error, names)
        if found is not None:
            # After a near-tie the derivations may differ.
            return None if found[0] == "near-tie" else (number, *found)
    outcomes = outcome_name(int(a.outcome[row])), outcome_name(int(b.outcome[row]))
    if outcomes[0] != outcomes[1]:
        return -1, "outcome", *outcomes
    if a.is_limited[row] != b.is_limited[row]:
        return -1, "is_limited", str(a.is_limited[row]), str(b.is_limited[row])
    p, q = float(a.log_probability[row]), float(b.log_probability[row])
    if not (abs(p - q) <= _log_probability_error(error, len(steps[0])) or (p != p and q != q)):
        return -1, "log_probability", repr(p), repr(q)
    return None


def difference_of_steps(one: StepView, other: StepView, error: float, names: Names) -> tuple[str, str, str] | None:
    """Return field and values of two steps' first difference; the field is `near-tie` for a choice that may differ."""
    if one.goal != other.goal:
        return "goal", names.goal(one.goal), names.goal(other.goal)
    if one.depth != other.depth:
        return "depth", str(one.depth), str(other.depth)
    found = difference_of_resolvents(one, other, names)
    if found is not None:
        return found
    for field in ("dropped_atoms", "dropped_resolvents"):
        if getattr(one, field) != getattr(other, field):
            return field, str(getattr(one, field)), str(getattr(other, field))
    for i, (x, y) in enumerate(zip(one.resolvents, other.resolvents, strict=True)):
        if not (abs(x.score - y.score) <= error or (x.score != x.score and y.score != y.score)):
            return "score", f"{x.score!r} of resolvent {i}", f"{y.score!r} of resolvent {i}"
    if one.choice != other.choice:
        if error and _is_near_tie(one, other.choice, 2 * error):
            return "near-tie", "", ""
        return "choice", str(one.choice), str(other.choice)
    if one.outcome != other.outcome:
        return "outcome", outcome_name(one.outcome), outcome_name(other.outcome)
    return None


def difference_of_resolvents(one: StepView, other: StepView, names: Names) -> tuple[str, str, str] | None:
    """Return the first difference of two steps' resolvents, in content or in the clause that made it."""
    for x, y in zip_longest(one.resolvents, other.resolvents):
        if x is None or y is None or (x.content, x.clause) != (y.content, y.clause):
            left, right = (names.resolvent(each) if each is not None else "nothing more" for each in (x, y))
            return "resolvents", left, right
    return None


def _is_near_tie(step: StepView, choice: int, margin: float) -> bool:
    if not (0 <= step.choice < len(step.resolvents) and 0 <= choice < len(step.resolvents)):
        return False
    return abs(step.resolvents[step.choice].score - step.resolvents[choice].score) <= margin
