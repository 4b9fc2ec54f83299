"""A second comparison of two sides, one candidate at a time. It is slow and plain, and checks the comparison that decides."""

import math
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple


class Clause(NamedTuple):
    """The resolvent of a step.

    content: its kind and its atoms
    clause:  the clause that made it; None if the side does not know it
    score:   None if the side does not know it
    place:   in a search, the place that it got, as a trace tells it; None if it is unknown
    log_probability: in a search, that of a kept resolvent; None if it is unknown
    """

    content: Hashable
    clause: Hashable
    score: float | None
    place: int | None = None
    log_probability: float | None = None


class TakenStep(NamedTuple):
    """A step that a side took. None stands for an unknown number.

    level, place, parent, log_probability: those of its path, in a search with several paths
    """

    goal: Hashable
    depth: int | None
    resolvents: Sequence[Clause]
    dropped_atoms: int | None
    dropped_resolvents: int | None
    choice: int
    outcome: int | None
    level: int | None = None
    place: int | None = None
    parent: int | None = None
    log_probability: float | None = None


class Proved(NamedTuple):
    """A candidate with its steps and its ending. `identity` is its query, side and atom, in names."""

    identity: Hashable
    steps: Sequence[TakenStep]
    outcome: int
    is_limited: int | None
    log_probability: float | None


class Rules(NamedTuple):
    """The rules of equality.

    tolerance:    the largest difference between two scores that count as equal
    has_lockstep: whether each candidate is a single step, numbered by its depth
    is_rounded:   whether the recorded actual scores are coarser than the scores that the choice was based on
    has_paths:    whether each step belongs to a path of a search; in levels
    """

    tolerance: float = 0.0
    has_lockstep: bool = False
    is_rounded: bool = False
    has_paths: bool = False


class Found(NamedTuple):
    """The first difference of a candidate.

    A near-tie has the gap of its scores. `step` is -1 for a difference of the endings.
    """

    step: int
    field: str
    gap: float | None = None


def find_difference(expected: Proved, actual: Proved, rules: Rules) -> Found | None:
    """Return the first difference of two candidates with the same identity; None if they agree."""
    if rules.has_paths:
        return _find_in_levels(expected, actual, rules)
    for i, (left, right) in enumerate(zip(expected.steps, actual.steps, strict=False)):
        if field := first_field(left, right, rules.tolerance):
            at = i if not rules.has_lockstep or left.depth is None else left.depth
            return Found(at, field, _gap(left, right, field, rules))
    return _compare_ends(expected, actual, rules)


def _find_in_levels(expected: Proved, actual: Proved, rules: Rules) -> Found | None:
    """Return the first difference of two searches: of each level, first the steps of its paths, then the kept children."""
    places = [step.level for step in expected.steps]
    begins = [i for i, level in enumerate(places) if not i or level != places[i - 1]]
    for number, (begin, end) in enumerate(zip(begins, [*begins[1:], len(places)], strict=True), 1):
        pairs = list(zip(expected.steps[begin:end], actual.steps[begin:end], strict=False))
        for i, (left, right) in enumerate(pairs, begin):
            same = right._replace(choice=left.choice, outcome=left.outcome)
            if field := _path_field(left, right, rules, number) or first_field(left, same, rules.tolerance):
                return Found(i, field)
        for left, right in pairs:
            for one, other in zip(left.resolvents, right.resolvents, strict=True):
                if _differ(one.place, other.place):
                    return Found(begin, "paths.child")
                if not _are_sums(one.log_probability, other.log_probability, rules, number):
                    return Found(begin, "paths.child_log_probability")
        for i, (left, right) in enumerate(pairs, begin):
            if left.choice != right.choice or _differ(left.outcome, right.outcome):
                return Found(i, "steps.choice" if left.choice != right.choice else "steps.outcome")
    return _compare_ends(expected, actual, rules)


def _path_field(left: TakenStep, right: TakenStep, rules: Rules, number: int) -> str:
    """Return the first field in which two paths differ; "" if they agree."""
    for name in ("level", "place"):
        if _differ(getattr(left, name), getattr(right, name)):
            return f"paths.{name}"
    if left.goal == right.goal and _differ(left.parent, right.parent):
        return "paths.parent"
    is_same = _are_sums(left.log_probability, right.log_probability, rules, number)
    return "" if is_same else "paths.log_probability"


def _are_sums(left: float | None, right: float | None, rules: Rules, number: int) -> bool:
    """Return whether two log-probabilities of a number of steps agree."""
    if left is None or right is None:
        return True
    size = abs(left) if math.isfinite(left) else 0.0
    return _are_close(left, right, 2 * rules.tolerance * number + 1e-9 * max(1.0, size))


def _differ(left: Any, right: Any) -> bool:
    return None not in (left, right) and left != right


def _are_close(left: float, right: float, tolerance: float) -> bool:
    return left == right or (math.isfinite(left) and math.isfinite(right) and abs(left - right) <= tolerance)


def first_field(left: TakenStep, right: TakenStep, tolerance: float) -> str:
    """Return the first field in which two steps differ, in the order in which a step computes them; "" if they agree."""
    if left.goal != right.goal:
        return "steps.goal_atoms"
    if _differ(left.depth, right.depth):
        return "steps.depth"
    contents = [[each.content for each in side.resolvents] for side in (left, right)]
    knows_clauses = all(each.clause is not None for side in (left, right) for each in side.resolvents)
    clauses = [[each.clause if knows_clauses else 0 for each in side.resolvents] for side in (left, right)]
    if contents[0] != contents[1]:
        return "resolvents.atoms"
    if clauses[0] != clauses[1]:
        return "resolvents.origin"
    for field in ("dropped_atoms", "dropped_resolvents"):
        if _differ(getattr(left, field), getattr(right, field)):
            return "steps." + field
    for one, other in zip(left.resolvents, right.resolvents, strict=True):
        if one.score is not None and other.score is not None and not _are_close(one.score, other.score, tolerance):
            return "resolvents.score"
    if left.choice != right.choice:
        return "steps.choice"
    return "steps.outcome" if _differ(left.outcome, right.outcome) else ""


def _gap(left: TakenStep, right: TakenStep, field: str, rules: Rules) -> float | None:
    """Return the gap of the expected scores at a different choice, if the error of scores excuses it."""
    num = len(left.resolvents)
    if field != "steps.choice" or not rules.tolerance:
        return None
    if not (0 <= left.choice < num and 0 <= right.choice < num):
        return None
    kinds = [side.resolvents[side.choice].content[0] for side in (left, right)]  # type: ignore[index]
    if _differ(left.outcome, right.outcome) and kinds[0] == kinds[1]:
        # TRUE and a goal end a derivation differently.
        return None
    own, scores = [each.score for each in right.resolvents], [each.score for each in left.resolvents]
    if not rules.is_rounded and None not in own and right.choice != own.index(max(own)):  # type: ignore[type-var]
        return None
    one, other = scores[left.choice], scores[right.choice]
    if one is None or other is None:
        return None
    gap = abs(one - other)
    return gap if gap <= 2 * rules.tolerance else None


def _compare_ends(expected: Proved, actual: Proved, rules: Rules) -> Found | None:
    """Compare the endings of two candidates whose common steps agree."""
    num = len(expected.steps), len(actual.steps)
    if num[0] != num[1]:
        return Found(min(num), "candidates.num_steps")
    if expected.outcome != actual.outcome:
        return Found(-1, "candidates.outcome")
    if _differ(expected.is_limited, actual.is_limited):
        return Found(-1, "candidates.is_limited")
    left, right = expected.log_probability, actual.log_probability
    if left is None or right is None:
        return None
    return None if _are_sums(left, right, rules, max(1, num[0])) else Found(-1, "candidates.log_probability")
