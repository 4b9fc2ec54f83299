"""The judge of a comparison by a second one, `kgreference.compare`: both must find the same in every candidate."""

from math import isclose
from typing import Any

from kgverify.comparison.compare import Comparer
from kgverify.comparison.result import NO_CANDIDATE, Comparison, Level, Verdict, highest_level
from kgverify.engines.reference.comparison import SecondAnswer
from kgverify.trace.model.levels import has_goals
from kgverify.verification.adding_up import require


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
    levels = {row: each.level for row, each in decided if each.gap is None}
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
