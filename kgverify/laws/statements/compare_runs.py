"""Comparison of two runs of the same candidates by one engine."""

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.step_view import Names, StepView, outcome_name
from kgverify.laws.case import Case, Finding, read_steps
from kgverify.program.stages import Stage
from kgverify.trace.model.columns import Candidates, Columns, starts_of

LOG_PROBABILITY_ERROR = 1e-6
"""The tolerance of a step's log-probability, in nats, beyond the effect of the scores' errors."""


class _Taken(NamedTuple):
    candidates: Candidates
    steps: list[StepView]
    first_step: list[int]

    @classmethod
    def of(cls, columns: Columns, steps: list[StepView]) -> "_Taken":
        return cls(columns.candidates, steps, starts_of(columns.candidates.num_steps).tolist())


def differing(case: Case, actual: Columns, stage: Stage, *, exactly: bool = False) -> Iterator[Finding]:
    """Yield the first difference of each derivation of the case from another run of the same candidates.

    Scores may differ by the engine's declared error on both sides. Nothing is reported from a choice on whose scores are
    closer than that. `exactly` allows no difference.
    """
    expected = case.columns
    error = 0.0 if exactly else 2 * case.score_error
    if is_same(expected, actual, error):
        return
    num = len(expected.candidates.query), len(actual.candidates.query)
    if num[0] != num[1]:
        yield Finding(-1, -1, Stage.RECYCLE, "candidates", f"{num[0]} candidates", f"{num[1]} candidates")
        return
    left, right = (_Taken.of(case.columns, case.steps), _Taken.of(actual, read_steps(actual)))
    for row in range(num[0]):
        found = _first_difference(left, right, row, error, case.names)
        if found is not None:
            step, field, one, other = found
            yield Finding(row, step, stage, field, one, other)


def is_same(expected: Columns, actual: Columns, error: float) -> bool:
    """Return whether all columns are equal, within the error of scores and its effect on log-probabilities."""
    most_steps = int(expected.candidates.num_steps.max(initial=1))
    levels: Any = zip(expected, actual, strict=True)
    for level, other in levels:
        for name, left, right in zip(level._fields, level, other, strict=True):
            if left.shape != right.shape:
                return False
            allowed = 0.0
            if error or name == "log_probability":
                allowed = {"score": error, "log_probability": _log_probability_error(error, most_steps)}.get(name, 0.0)
            if not _is_close(left, right, allowed):
                return False
    return True


def _log_probability_error(error: float, num_steps: int) -> float:
    # The log-softmax moves by at most the error of the chosen score and that of the highest ones.
    return num_steps * (2 * error + (LOG_PROBABILITY_ERROR if error else 0.0))


def _is_close(left: NDArray[Any], right: NDArray[Any], allowed: float) -> bool:
    if not allowed:
        return np.array_equal(left, right, equal_nan=left.dtype.kind == "f")
    return bool(np.allclose(left, right, rtol=0, atol=allowed, equal_nan=True))


def _first_difference(
    left: _Taken, right: _Taken, row: int, error: float, names: Names
) -> tuple[int, str, str, str] | None:
    a, b = left.candidates, right.candidates
    if (a.query[row], a.side[row], *a.atom[row]) != (b.query[row], b.side[row], *b.atom[row]):
        return -1, "candidate", names.atom(tuple(a.atom[row].tolist())), names.atom(tuple(b.atom[row].tolist()))
    steps = [each.steps[each.first_step[row] : each.first_step[row + 1]] for each in (left, right)]
    for number, (one, other) in enumerate(zip_longest(*steps)):
        if one is None or other is None:
            return number, "steps", f"{len(steps[0])} steps", f"{len(steps[1])} steps"
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
