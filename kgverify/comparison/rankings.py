"""The comparison of ranks: a rank that differs although all its candidates agree is a fault of `rank` itself."""

from collections.abc import Callable, Collection
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.result import Comparison, Divergence, Level, Verdict, highest_level
from kgverify.comparison.step_view import Names, side_name
from kgverify.program.outcomes import NOT_PROVED_PENALTY, Outcome, Stage
from kgverify.trace.model.columns import Candidates, Rankings
from kgverify.trace.model.score_tolerance import judge_tolerance
from kgverify.trace.model.trace import Trace

NO_ROWS: Final[NDArray[np.int64]] = np.zeros(0, np.int64)
"""The rows of an empty list of candidates."""

RankCandidates = Callable[[Candidates], Rankings]
"""Ranks candidates as one side does."""


def compare_rankings(
    comparison: Comparison,
    expected: Trace,
    actual: Trace,
    ranks: tuple[RankCandidates, RankCandidates] | None = None,
    *,
    tolerance: float | None = None,
    unexplained: Collection[tuple[int, int]] = (),
    repeating: NDArray[np.int64] = NO_ROWS,
) -> Comparison:
    """Add the divergences of `rank`, and raise the level if ranks or the metric differ.

    ranks: the ranking functions of the expected and the actual side. Each ranks the other side's candidates again, which
           separates faults of ranking from consequences of other faults. Without them only the groups whose candidates
           all agree are judged.
    tolerance:   the largest difference between two scores that count as equal, in nats; None: the judge's bound
    unexplained: without ranking functions, further groups whose ranks do not follow from their candidates by one rule
    repeating:   the expected candidates whose recorded sums count resolvents that one side repeats: ranks follow from them
    """
    if expected.rankings is None or actual.rankings is None:
        missing = [role for role, trace in (("expected", expected), ("actual", actual)) if trace.rankings is None]
        note = f"ranks were not compared: the {' and the '.join(missing)} trace has none"
        return msgspec.structs.replace(comparison, notes=(*comparison.notes, note))
    left, right = _by_group(expected.rankings), _by_group(actual.rankings)
    found = []
    names = Names(expected)
    if ranks is not None:
        pairs = [(_by_group(ranks[0](actual.columns.candidates)), right)]
        pairs.append((left, _by_group(ranks[1](expected.columns.candidates))))
        wrong = {g: (w.get(g), h.get(g)) for w, h in reversed(pairs) for g in {**w, **h} if w.get(g) != h.get(g)}
        found = [_divergence(group, *wrong[group], expected, names) for group in sorted(wrong)]
    else:
        candidates = expected.columns.candidates
        touched = {(each.query, each.side) for each in comparison.divergences}
        for row in (*(tie.candidate for tie in comparison.near_ties), *repeating.tolist()):
            touched.add((int(candidates.query[row]), side_name(int(candidates.side[row]))))
        error = judge_tolerance(expected.header, actual.header).value if tolerance is None else tolerance
        for group in sorted({**left, **right}):
            wanted, got = left.get(group), right.get(group)
            is_touched = (group[0], side_name(group[1])) in touched
            is_wrong = wanted != got and not is_touched and not _is_rounding(expected, error, group, wanted, got)
            if is_wrong or group in unexplained:
                found.append(_divergence(group, wanted, got, expected, names))
    differing = [group for group in {**left, **right} if left.get(group) != right.get(group)]
    levels = [comparison.level, *(each.level for each in (*comparison.divergences, *found))]
    if differing and (comparison.divergences or found):
        metric = not np.isclose(
            mean_reciprocal_rank(expected.rankings), mean_reciprocal_rank(actual.rankings), rtol=0, atol=1e-12
        )
        levels.append(Level.METRIC if metric else Level.RANK)
    notes = comparison.notes
    if differing and not (comparison.divergences or found):
        cause = "repeated resolvents" if len(repeating) else "near-ties"
        notes = (*notes, f"{len(differing)} ranks differ by {cause} alone")
    verdict = comparison.verdict
    if found and verdict is Verdict.AGREE:
        verdict = Verdict.DIVERGE
    return msgspec.structs.replace(
        comparison,
        verdict=verdict,
        divergences=(*comparison.divergences, *found),
        level=highest_level(levels),
        notes=notes,
    )


class _Ranks(NamedTuple):
    """A row of the rankings, without its query and side."""

    num_ranked: int
    optimistic: float
    pessimistic: float


def _by_group(rankings: Rankings) -> dict[tuple[int, int], _Ranks]:
    rows = zip(*(column.tolist() for column in rankings), strict=True)
    return {(query, side): _Ranks(*ranks) for query, side, *ranks in rows}


def _is_rounding(
    expected: Trace, error: float, group: tuple[int, int], wanted: _Ranks | None, got: _Ranks | None
) -> bool:
    """Return whether errors of scores alone can turn the wanted ranks of a group into the found ones.

    A trace does not say which candidate of a group is the true one: any with the wanted ranks may be.
    """
    if not error or wanted is None or got is None or wanted.num_ranked != got.num_ranked:
        return False
    candidates = expected.columns.candidates
    rows = (candidates.query == group[0]) & (candidates.side == group[1])
    unproved = candidates.outcome[rows] != Outcome.PROVED
    scores = candidates.log_probability[rows] - NOT_PROVED_PENALTY * unproved
    tolerance = expected.header.run.rank_tolerance
    margin = 4 * error * int(candidates.num_steps[rows].max(initial=1))
    for true_score in scores:
        gaps = scores - true_score

        def ranks(shift: float, gaps: NDArray[np.float64] = gaps) -> tuple[float, float]:
            above = int(((gaps + shift >= tolerance) & (gaps + shift > 0)).sum())
            below = int((gaps + shift <= -tolerance).sum() if tolerance else (gaps + shift < 0).sum())
            return 1.0 + above, float(len(gaps) - below)

        if ranks(0.0) == (wanted.optimistic, wanted.pessimistic):
            (low, least), (high, most) = ranks(-margin), ranks(margin)
            if low <= got.optimistic <= high and least <= got.pessimistic <= most:
                return True
    return False


def _divergence(
    group: tuple[int, int],
    wanted: _Ranks | None,
    got: _Ranks | None,
    expected: Trace,
    names: Names,
) -> Divergence:
    candidates = expected.columns.candidates
    rows = np.flatnonzero((candidates.query == group[0]) & (candidates.side == group[1]))
    row = int(rows[0]) if len(rows) else -1
    return Divergence(
        candidate=row,
        atom=names.atom(tuple(candidates.atom[row].tolist())) if row >= 0 else "",
        query=group[0],
        side=side_name(group[1]),
        step=-1,
        stage=Stage.RANK.value,
        field="rankings",
        level=Level.RANK,
        expected=_render(wanted),
        actual=_render(got),
    )


def _render(ranks: _Ranks | None) -> str:
    if ranks is None:
        return "not ranked"
    return f"optimistic {ranks.optimistic:g}, pessimistic {ranks.pessimistic:g}, of {ranks.num_ranked}"


def mean_reciprocal_rank(rankings: Rankings) -> float:
    """Return the MRR of the realistic ranks over both sides; 0 if nothing was ranked."""
    ranks = (rankings.optimistic + rankings.pessimistic) / 2
    return float(np.mean(1 / ranks)) if len(ranks) else 0.0
