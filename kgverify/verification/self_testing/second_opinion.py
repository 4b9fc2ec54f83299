"""The second opinion: what a comparison found, beside what the second comparison, `kgreference.compare`, finds."""

from math import isclose
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kgverify.comparison.compare import Comparer
from kgverify.comparison.modulo.policy import DUPLICATES, ORDER
from kgverify.comparison.result import NO_CANDIDATE, Comparison, Level, Verdict, highest_level
from kgverify.garbage_collection import without_garbage_collection
from kgverify.trace.model.levels import has_goals
from kgverify.verification.self_testing.stored_self_test import require

if TYPE_CHECKING:
    from kgverify.engines.reference.comparison import SecondAnswer

_MOST_STEPS: Final = 400
"""The most steps that are compared a second time, beyond those of one candidate."""

_NUM_DIVERGENT: Final = 10
_NUM_AGREEING: Final = 5


@without_garbage_collection()
def check_sample(comparer: Comparer) -> None:
    """InternalError unless a second comparison finds the same in the first candidates that differ, and in some that agree."""
    found, (expected, actual) = comparer.comparison, comparer.sources
    num = expected.num_candidates
    if not num or found.coverage.candidates < max(num, actual.num_candidates):
        # The rows of a sample are those of pairs.
        return
    if not all(has_goals(source.header.level) for source in comparer.sources):
        return
    if DUPLICATES in comparer.modulo:
        # The second comparison knows no repetitions.
        return
    listed = {each.candidate: each for each in found.divergences}
    ties = {(each.candidate, each.step) for each in found.near_ties}
    decided = {*listed, *(candidate for candidate, _ in ties)}
    is_whole = not any("are listed" in note for note in found.notes)
    agreeing = {*np.linspace(0, num - 1, _NUM_AGREEING, dtype=np.int64).tolist()} - decided if is_whole else set()
    wanted = [*sorted(listed)[:_NUM_DIVERGENT], *sorted(row for row, _ in ties)[:2], *sorted(agreeing)]
    counts = np.cumsum(expected.gather_column("num_steps", np.array(wanted, np.int64)), dtype=np.int64)
    rows = np.unique(wanted[: 1 + int(np.searchsorted(counts, _MOST_STEPS))])
    tolerance, lockstep = comparer.score_tolerance, comparer.lockstep
    # A saved report is shown without the reference.
    from kgverify.engines.reference.comparison import compare_again

    made = comparer.pair_of(rows)
    for pair, _, each in compare_again(made.expected, made.actual, tolerance, lockstep=lockstep).pairs:
        row = int(rows[pair])
        second, first = each.found, listed.get(row)
        differing = {one.field for one in (first, second) if one is not None}
        if ORDER in comparer.modulo and (row in decided - listed.keys() or "steps.choice" in differing):
            # A tie is judged in the order as recorded, which the second comparison does not see.
            continue
        if second is None or second.gap is not None:
            is_same = (
                first is None and (second is None or (row, second.step) in ties) and (row in decided) == bool(second)
            )
        else:
            # Traces that keep the outputs of stages name a stage instead of a field.
            fields = {second.field, *([first.field] if first is not None and first.field.startswith("stage.") else [])}
            is_same = first is not None and first.step == second.step and first.field in fields
            is_same = is_same and first is not None and first.level.value == second.level
        require(is_same, f"candidate {row}: a second comparison finds {second}, and {first} is reported")


def can_be_checked(comparer: Comparer) -> bool:
    """Return whether the second comparison can judge what a comparer found: all of it, from goals, as recorded."""
    found = comparer.comparison
    if comparer.modulo:
        return False
    levels = [source.header.level for source in comparer.sources]
    return all(map(has_goals, levels)) and not found.reasons and not any("are listed" in note for note in found.notes)


def check_by_second(found: Comparison, second: "SecondAnswer", where: str) -> None:
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
