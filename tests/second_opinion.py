"""The judge of a comparison by a second one, `kgreference.compare`: both must find the same in every candidate."""

from collections import Counter
from collections.abc import Hashable, Sequence
from math import isclose
from typing import Any, NamedTuple

from kgreference import compare
from kgreference.compare import Found, Proved, Rules, TakenStep
from kgverify import Verdict
from kgverify.comparison.compare import Comparer
from kgverify.comparison.result import NO_CANDIDATE, Comparison, Level, highest_level
from kgverify.engines.reference.comparison import read_sides
from kgverify.trace.model.schema import has_goals
from kgverify.trace.model.trace import Trace
from kgverify.verification.planted_changes import require


class Compared(NamedTuple):
    """The answer for one pair of candidates: what differs first, at which level, and how much was compared."""

    found: Found | None
    level: str
    num_steps: int
    num_resolvents: int
    has_other_bits: bool


class SecondAnswer(NamedTuple):
    """The answer of the second comparison.

    pairs:   the rows of each pair, with what differs first
    missing: the rows of the expected candidates that the actual side lacks
    extra:   the rows of the actual candidates that the expected side lacks
    """

    pairs: list[tuple[int, int, Compared]]
    missing: list[int]
    extra: list[int]


def compare_again(expected: Trace, actual: Trace, tolerance: float, *, lockstep: bool = False) -> SecondAnswer:
    """Compare two traces of levels that keep goals, one candidate at a time."""
    has_steps = "steps.num_resolvents" in expected.fields & actual.fields
    left, right, rules = read_sides(expected, actual, tolerance, lockstep=lockstep)
    pairs, missing, extra = pair_candidates(left, right)
    return SecondAnswer(
        [(i, j, compare_candidates(left[i], right[j], rules, has_steps)) for i, j in pairs], missing, extra
    )


LEVELS_OF_ENDS = {
    "candidates.num_steps": "outcome",
    "candidates.outcome": "outcome",
    "candidates.is_limited": "renaming",
    "candidates.log_probability": "tolerance",
}


def compare_candidates(expected: Proved, actual: Proved, rules: Rules, has_steps: bool) -> Compared:
    """Return the first difference of two candidates with the same identity, and its level."""
    num_resolvents, has_other_bits = 0, False
    found = compare.find_difference(expected, actual, rules)
    for i, (left, right) in enumerate(zip(expected.steps, actual.steps, strict=False)):
        num_resolvents += len(left.resolvents) * has_steps
        field = compare.first_field(left, right, rules.tolerance)
        if field in ("", "steps.choice"):
            has_other_bits = has_other_bits or _has_other_bits(left, right)
        if field == "":
            continue
        assert found is not None
        if found.gap is not None:
            return Compared(found, "", i + 1, num_resolvents, has_other_bits)
        if field.startswith("resolvents.") and field != "resolvents.score":
            field = _field_of_resolvents(left, right)
        level = _level(left, right, field)
        if not rules.has_lockstep and expected.outcome != actual.outcome:
            level = "outcome"
        return Compared(found._replace(field=field), level, i + 1, num_resolvents, has_other_bits)
    level = LEVELS_OF_ENDS[found.field] if found else ""
    num_common = min(len(expected.steps), len(actual.steps))
    return Compared(found, level, num_common, num_resolvents, has_other_bits)


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


def _chosen(step: TakenStep) -> Hashable:
    return step.resolvents[step.choice].content if 0 <= step.choice < len(step.resolvents) else None


def _field_of_resolvents(left: TakenStep, right: TakenStep) -> str:
    contents = [[each.content for each in side.resolvents] for side in (left, right)]
    knows_clauses = all(each.clause is not None for side in (left, right) for each in side.resolvents)
    clauses = [[each.clause if knows_clauses else 0 for each in side.resolvents] for side in (left, right)]
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


def _level(left: TakenStep, right: TakenStep, field: str) -> str:
    if compare._differ(left.outcome, right.outcome):
        return "outcome"
    if _chosen(left) != _chosen(right):
        return "choice"
    if field == "resolvents.score":
        return "tolerance"
    is_same = Counter(each.content for each in left.resolvents) == Counter(each.content for each in right.resolvents)
    is_order = field in ("resolvents.order", "resolvents.origin", "steps.choice")
    return "order" if is_same and is_order else "renaming"


def _has_other_bits(left: TakenStep, right: TakenStep) -> bool:
    return any(
        compare._differ(one.score, other.score) for one, other in zip(left.resolvents, right.resolvents, strict=False)
    )


def can_be_checked(comparer: Comparer) -> bool:
    """Return whether the second comparison can judge what a comparer found: all of it, from goals, as recorded."""
    found = comparer.comparison
    if comparer.modulo:
        return False
    levels = [source.header.level for source in comparer.sources]
    return all(map(has_goals, levels)) and not found.reasons and not any("are listed" in note for note in found.notes)


def check_by_second(found: Comparison, second: SecondAnswer, where: str) -> None:
    """InternalError unless a comparison found exactly what the second one did."""
    decided = [(row, each.found) for row, _, each in second.pairs if each.found is not None]
    wanted: list[Any] = [(row, each.step, each.field) for row, each in decided if each.gap is None]
    wanted += [(row, -1, "candidates.atom") for row in second.missing]
    wanted += [(row, -1, NO_CANDIDATE) for row in second.extra]
    listed = [
        (each.candidate, each.step, NO_CANDIDATE if each.expected == NO_CANDIDATE else each.field)
        for each in found.divergences
    ]
    difference = sorted(set(wanted) ^ set(listed))
    require(sorted(wanted) == sorted(listed), f"{where}: a second comparison disagrees: {difference[:3]}")
    levels = {row: each.level for row, _, each in second.pairs if each.found is not None and each.found.gap is None}
    for each in found.divergences:
        is_same = each.field == "candidates.atom" or each.level.value == levels[each.candidate]
        require(is_same, f"{where}: the level of candidate {each.candidate} is {levels.get(each.candidate)}")
    ties = {(row, each.step): each.gap for row, each in decided if each.gap is not None}
    gaps = {(tie.candidate, tie.step): tie.gap for tie in found.near_ties}
    is_same = ties.keys() == gaps.keys() and all(
        isclose(gaps[at], gap or 0.0, abs_tol=1e-12) for at, gap in ties.items()
    )
    require(is_same, f"{where}: the near-ties are {ties}, and {gaps} are reported")
    counts = (
        len(second.pairs),
        sum(e.num_steps for *_, e in second.pairs),
        sum(e.num_resolvents for *_, e in second.pairs),
    )
    covered = found.coverage
    reported = covered.candidates, covered.steps, covered.resolvents
    require(counts == reported, f"{where}: (candidates, steps, resolvents) are {counts}, and {reported} are reported")
    verdict = Verdict.DIVERGE if wanted else Verdict.AGREE
    require(found.verdict is verdict, f"{where}: {found.verdict.value}, and the second comparison says {verdict.value}")
    most = highest_level([*map(Level, levels.values()), *([Level.OUTCOME] if second.missing or second.extra else [])])
    is_bits = most is None and any(each.has_other_bits for *_, each in second.pairs)
    # Scores of two types are compared in the coarser one.
    require(
        found.level in ({most} if most else {None, Level.BITS} if is_bits else {None}), f"{where}: level {found.level}"
    )
