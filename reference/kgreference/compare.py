"""A second comparison of two sides, one candidate at a time: slow and plain, to check the one that decides."""

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple


class Clause(NamedTuple):
    """The resolvent of a step.

    content: its kind and its atoms
    clause:  the clause that made it; None if the side does not know it
    score:   None if the side does not know it
    """

    content: Hashable
    clause: Hashable
    score: float | None


class TakenStep(NamedTuple):
    """A step that a side took. None stands for a number that the side does not know."""

    goal: Hashable
    depth: int | None
    resolvents: Sequence[Clause]
    dropped_atoms: int | None
    dropped_resolvents: int | None
    choice: int
    outcome: int | None


class Proved(NamedTuple):
    """A candidate with its steps and its end. `identity` is its query, side and atom, in names."""

    identity: Hashable
    steps: Sequence[TakenStep]
    outcome: int
    is_limited: int | None
    log_probability: float | None


class Rules(NamedTuple):
    """The rules of equality.

    tolerance:    the largest difference between two scores that count as equal
    has_lockstep: whether each candidate is a single step, which its depth numbers
    is_rounded:   whether the recorded actual scores are coarser than those that the choice was made from
    has_steps:    whether both sides know their resolvents
    """

    tolerance: float = 0.0
    has_lockstep: bool = False
    is_rounded: bool = False
    has_steps: bool = True


class Found(NamedTuple):
    """The first difference of a candidate, or a near-tie (with the gap of its scores, and no level)."""

    step: int
    field: str
    level: str
    gap: float | None = None


class Compared(NamedTuple):
    """The answer for one pair of candidates: what differs first, and how much was compared."""

    found: Found | None
    num_steps: int
    num_resolvents: int
    has_other_bits: bool


def compare_candidates(expected: Proved, actual: Proved, rules: Rules) -> Compared:
    """Return the first difference of two candidates with the same identity."""
    num_resolvents = 0
    has_other_bits = False
    num_common = min(len(expected.steps), len(actual.steps))
    for i in range(num_common):
        left, right = expected.steps[i], actual.steps[i]
        if rules.has_steps:
            num_resolvents += len(left.resolvents)
        field = first_field(left, right, rules.tolerance)
        if field in ("", "steps.choice"):
            has_other_bits = has_other_bits or _has_other_bits(left, right)
        if field == "":
            continue
        at = i if not rules.has_lockstep or left.depth is None else left.depth
        gap = _gap(left, right, field, rules)
        if gap is not None:
            return Compared(Found(at, field, "", gap), i + 1, num_resolvents, has_other_bits)
        level = _level(left, right, field)
        if not rules.has_lockstep and expected.outcome != actual.outcome:
            level = "outcome"
        return Compared(Found(at, field, level), i + 1, num_resolvents, has_other_bits)
    return Compared(_compare_ends(expected, actual, rules), num_common, num_resolvents, has_other_bits)


def pair_candidates(
    expected: Sequence[Proved], actual: Sequence[Proved]
) -> tuple[list[tuple[int, int]], list[int], list[int]]:
    """Return the pairs, the expected candidates without a counterpart, and the actual ones.

    The n-th of equal candidates is paired with the n-th of the other side.
    """
    places: dict[Hashable, list[int]] = {}
    for row, candidate in enumerate(actual):
        places.setdefault(candidate.identity, []).append(row)
    pairs, missing = [], []
    for row, candidate in enumerate(expected):
        rest = places.get(candidate.identity)
        if rest:
            pairs.append((row, rest.pop(0)))
        else:
            missing.append(row)
    return pairs, missing, [row for rest in places.values() for row in rest]


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
    if contents[0] != contents[1] or clauses[0] != clauses[1]:
        return _field_of_resolvents(contents, clauses)
    for field in ("dropped_atoms", "dropped_resolvents"):
        if _differ(getattr(left, field), getattr(right, field)):
            return "steps." + field
    for one, other in zip(left.resolvents, right.resolvents, strict=True):
        if one.score is not None and other.score is not None and not _are_close(one.score, other.score, tolerance):
            return "resolvents.score"
    if left.choice != right.choice:
        return "steps.choice"
    return "steps.outcome" if _differ(left.outcome, right.outcome) else ""


def _field_of_resolvents(contents: list[list[Hashable]], clauses: list[list[Hashable]]) -> str:
    whole = [Counter(zip(c, m, strict=True)) for c, m in zip(contents, clauses, strict=True)]
    if whole[0] == whole[1]:
        return "resolvents.order"
    sides = [
        [content for content, _ in (whole[side] - whole[1 - side]).elements() if not _is_false(content)]
        for side in (0, 1)
    ]
    if sides == [[], []]:
        sides = [[content for content, _ in (whole[side] - whole[1 - side]).elements()] for side in (0, 1)]
    return "resolvents.origin" if Counter(sides[0]) == Counter(sides[1]) else "resolvents.atoms"


def _is_false(content: Any) -> bool:
    # The kind of a goal that cannot be proved.
    return bool(content[0] == 2)


def _chosen(step: TakenStep) -> Hashable:
    return step.resolvents[step.choice].content if 0 <= step.choice < len(step.resolvents) else None


def _gap(left: TakenStep, right: TakenStep, field: str, rules: Rules) -> float | None:
    """Return the gap of the expected scores at another choice that the error of scores excuses."""
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


def _level(left: TakenStep, right: TakenStep, field: str) -> str:
    if _differ(left.outcome, right.outcome):
        return "outcome"
    if _chosen(left) != _chosen(right):
        return "choice"
    if field == "resolvents.score":
        return "tolerance"
    is_same = Counter(each.content for each in left.resolvents) == Counter(each.content for each in right.resolvents)
    is_order = field in ("resolvents.order", "resolvents.origin", "steps.choice")
    return "order" if is_same and is_order else "renaming"


def _has_other_bits(left: TakenStep, right: TakenStep) -> bool:
    return any(_differ(one.score, other.score) for one, other in zip(left.resolvents, right.resolvents, strict=False))


def _compare_ends(expected: Proved, actual: Proved, rules: Rules) -> Found | None:
    """Compare the ends of two candidates whose common steps agree."""
    num = len(expected.steps), len(actual.steps)
    if num[0] != num[1]:
        return Found(min(num), "candidates.num_steps", "outcome")
    if expected.outcome != actual.outcome:
        return Found(-1, "candidates.outcome", "outcome")
    if _differ(expected.is_limited, actual.is_limited):
        return Found(-1, "candidates.is_limited", "renaming")
    left, right = expected.log_probability, actual.log_probability
    if left is None or right is None:
        return None
    size = abs(left) if math.isfinite(left) else 0.0
    tolerance = 2 * rules.tolerance * max(1, num[0]) + 1e-9 * max(1.0, size)
    return None if _are_close(left, right, tolerance) else Found(-1, "candidates.log_probability", "tolerance")
