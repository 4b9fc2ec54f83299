"""Comparison of two runs of the same candidates by one engine."""

from collections.abc import Iterator, Sequence
from itertools import pairwise, zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.step_view import Names, ResolventView, StepView, outcome_name
from kgverify.errors import count_of
from kgverify.laws.case import Case, Finding, read_steps
from kgverify.program.stages import Stage
from kgverify.trace.model.columns import Candidates, Columns, select_candidates, starts_of

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
    steps = zip(_group_steps(expected), _group_steps(actual), strict=True)
    for row, pair in enumerate(steps):
        found = _first_difference((expected.candidates, actual.candidates), pair, row, error, case.names)
        if found is not None:
            yield Finding(row, found[0], stage, *found[1:])


def differing_among(case: Case, columns: Columns, num: int, rows: NDArray[np.int64]) -> Iterator[Finding]:
    """Yield the first difference of each derivation from rows of another run, which had a number of candidates."""
    if len(columns.candidates.query) != num:
        yield Finding(-1, -1, Stage.RECYCLE, "candidates", str(num), str(len(columns.candidates.query)))
    else:
        yield from differing(case, select_candidates(columns, rows), Stage.RECYCLE)


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
    for field, (left, right) in (
        ("outcome", (outcome_name(int(each.outcome[row])) for each in candidates)),
        ("is_limited", (str(each.is_limited[row]) for each in candidates)),
    ):
        if left != right:
            return -1, field, left, right
    p, q = float(a.log_probability[row]), float(b.log_probability[row])
    if not (abs(p - q) <= _log_probability_error(error, len(steps[0])) or (p != p and q != q)):
        return -1, "log_probability", repr(p), repr(q)
    return None


def difference_of_steps(one: StepView, other: StepView, error: float, names: Names) -> tuple[str, str, str] | None:
    """Return field and values of two steps' first difference; the field is `near-tie` for a choice that may differ."""
    if one.goal != other.goal:
        return "goal", names.goal(one.goal), names.goal(other.goal)
    found = (
        _difference_in("depth", one, other)
        or difference_of_resolvents(one.resolvents, other.resolvents, names)
        or _difference_in("dropped_atoms", one, other)
        or _difference_in("dropped_resolvents", one, other)
    )
    if found is not None:
        return found
    for i, (x, y) in enumerate(zip(one.resolvents, other.resolvents, strict=True)):
        if not (abs(x.score - y.score) <= error or (x.score != x.score and y.score != y.score)):
            return "score", f"{x.score!r} of resolvent {i}", f"{y.score!r} of resolvent {i}"
    if one.choice != other.choice and error and _is_near_tie(one, other.choice, 2 * error):
        return "near-tie", "", ""
    found = _difference_in("choice", one, other)
    if found is None and one.outcome != other.outcome:
        found = "outcome", outcome_name(one.outcome), outcome_name(other.outcome)
    return found


def _difference_in(field: str, one: StepView, other: StepView) -> tuple[str, str, str] | None:
    left, right = getattr(one, field), getattr(other, field)
    return None if left == right else (field, str(left), str(right))


def difference_of_counts(one: StepView, other: StepView) -> tuple[str, str, str] | None:
    """Return how two steps differ in what they dropped."""
    left, right = ((each.dropped_atoms, each.dropped_resolvents) for each in (one, other))
    return None if left == right else ("dropped", str(left), str(right))


def difference_of_resolvents(
    resolvents: Sequence[ResolventView], others: Sequence[ResolventView], names: Names
) -> tuple[str, str, str] | None:
    """Return the first difference of two lists of resolvents, in content or in the clause that made it."""
    for x, y in zip_longest(resolvents, others):
        if x is None or y is None or (x.content, x.clause) != (y.content, y.clause):
            left, right = (names.resolvent(each) if each is not None else "nothing more" for each in (x, y))
            return "resolvents", left, right
    return None


def _is_near_tie(step: StepView, choice: int, margin: float) -> bool:
    if not (0 <= step.choice < len(step.resolvents) and 0 <= choice < len(step.resolvents)):
        return False
    return abs(step.resolvents[step.choice].score - step.resolvents[choice].score) <= margin
