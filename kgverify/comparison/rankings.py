"""The comparison of ranks: a rank that differs although all its candidates agree is a fault of `rank` itself."""

from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.result import Comparison, Divergence, Level, Verdict, highest_level
from kgverify.comparison.step_view import Names, side_name
from kgverify.program.outcomes import NOT_PROVED_PENALTY, Outcome, Stage
from kgverify.trace.model.columns import UNKNOWN, Candidates, Rankings
from kgverify.trace.model.score_tolerance import judge_tolerance
from kgverify.trace.model.trace import Trace

NO_ROWS: Final[NDArray[np.int64]] = np.zeros(0, np.int64)
"""The rows of an empty list of candidates."""

RankCandidates = Callable[[Candidates], Rankings]
"""A function that ranks candidates as one side does."""


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
           separates faults of ranking from consequences of other faults. Without them, only groups whose candidates
           all agree are judged.
    tolerance:   the largest difference between two scores that count as equal, in nats; None: the judge's bound
    unexplained: without ranking functions, further groups whose ranks do not follow from their candidates by one rule
    repeating:   the expected candidates whose recorded sums include resolvents that one side repeats: they affect ranks
    """
    if expected.rankings is None or actual.rankings is None:
        missing = [role for role, trace in (("expected", expected), ("actual", actual)) if trace.rankings is None]
        has = "has" if len(missing) == 1 else "have"
        note = f"ranks were not compared: the {' and the '.join(missing)} trace {has} none"
        return msgspec.structs.replace(comparison, notes=(*comparison.notes, note))
    left, right = _by_group(expected.rankings), _by_group(actual.rankings)
    if ranks is not None:
        # If both sides rank a group wrongly, the expected side's ranks are shown.
        both = (
            (left, _by_group(ranks[1](expected.columns.candidates))),
            (_by_group(ranks[0](actual.columns.candidates)), right),
        )
        wrong = {group: own for sides in both for group, own in _pair(*sides).items() if own[0] != own[1]}
    else:
        error = judge_tolerance(expected.header, actual.header).value if tolerance is None else tolerance
        touched = _find_touched(comparison, expected.columns.candidates, repeating)
        wrong = {
            group: both
            for group, both in _pair(left, right).items()
            if group in unexplained
            or ((group[0], side_name(group[1])) not in touched and not _is_rounding(expected, error, group, *both))
        }
    names, candidates = Names(expected), expected.columns.candidates
    groups = zip(candidates.query.tolist(), candidates.side.tolist(), strict=True)
    rows = {group: row for row, group in reversed([*enumerate(groups)])} if wrong else {}
    found = [_divergence(group, *wrong[group], names, candidates, rows.get(group, -1)) for group in sorted(wrong)]
    cause = "repeated resolvents" if len(repeating) else "near-ties"
    return _add_ranks(comparison, found, (expected.rankings, actual.rankings), cause)


def _add_ranks(
    comparison: Comparison, found: Sequence[Divergence], rankings: tuple[Rankings, Rankings], cause: str
) -> Comparison:
    """Add the divergences of `rank`. cause: the cause to name if ranks differ without any divergence."""
    ranks = _pair(*map(_by_group, rankings)).values()
    num_differing = sum(wanted != got for wanted, got in ranks)
    divergences, notes = (*comparison.divergences, *found), comparison.notes
    levels = [comparison.level, *(each.level for each in divergences)]
    if num_differing and divergences:
        expected, actual = map(mean_reciprocal_rank, rankings)
        is_same = np.isclose(expected, actual, rtol=0, atol=1e-12)
        levels.append(Level.RANK if is_same else Level.METRIC)
    elif num_differing:
        notes = (*notes, f"{num_differing} ranks differ by {cause} alone")
    is_new = found and comparison.verdict is Verdict.AGREE
    return msgspec.structs.replace(
        comparison,
        verdict=Verdict.DIVERGE if is_new else comparison.verdict,
        divergences=divergences,
        level=highest_level(levels),
        notes=notes,
    )


def _find_touched(comparison: Comparison, candidates: Candidates, repeating: NDArray[np.int64]) -> set[tuple[int, str]]:
    """Return the queries and sides with a candidate that differs, or whose sum may differ."""
    rows = [*(tie.candidate for tie in comparison.near_ties), *repeating.tolist()]
    touched = {(each.query, each.side) for each in comparison.divergences}
    return touched | {(int(candidates.query[row]), side_name(int(candidates.side[row]))) for row in rows}


class _Ranks(NamedTuple):
    """A row of the rankings, without its query and side."""

    num_ranked: int
    optimistic: float
    pessimistic: float


_Group = tuple[int, int]
"""A query and a side."""


def _by_group(rankings: Rankings) -> dict[_Group, _Ranks]:
    rows = zip(*(column.tolist() for column in rankings), strict=True)
    return {(query, side): _Ranks(*ranks) for query, side, *ranks in rows}


def _pair(
    expected: dict[_Group, _Ranks], actual: dict[_Group, _Ranks]
) -> dict[_Group, tuple[_Ranks | None, _Ranks | None]]:
    return {group: (expected.get(group), actual.get(group)) for group in {**expected, **actual}}


def _is_rounding(expected: Trace, error: float, group: _Group, wanted: _Ranks | None, got: _Ranks | None) -> bool:
    """Return whether the ranks of a group are equal, or can differ only because of the errors of scores.

    A trace does not record which candidate of a group is the true one: it may be any candidate with the wanted ranks.
    """
    if wanted == got or not error or wanted is None or got is None or wanted.num_ranked != got.num_ranked:
        return wanted == got
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
    group: _Group,
    wanted: _Ranks | None,
    got: _Ranks | None,
    names: Names,
    candidates: Candidates,
    row: int,
) -> Divergence:
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
    if ranks.num_ranked == UNKNOWN:
        return f"rank {ranks.optimistic:g}" + f" to {ranks.pessimistic:g}" * (ranks.pessimistic > ranks.optimistic)
    return f"optimistic {ranks.optimistic:g}, pessimistic {ranks.pessimistic:g}, of {ranks.num_ranked}"


def mean_reciprocal_rank(rankings: Rankings) -> float:
    """Return the MRR of the realistic ranks over both sides; 0 if nothing was ranked."""
    ranks = (rankings.optimistic + rankings.pessimistic) / 2
    return float(np.mean(1 / ranks)) if len(ranks) else 0.0
