"""Known ranking rules, and the rules that explain the ranks of a trace from its own candidates."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import combinations
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from kgverify.program.outcomes import Outcome, Side
from kgverify.ranking.rank import RANK_TOLERANCE, Truth, count_gaps, drop_repeated, group_keys, ranking_scores
from kgverify.trace.model.columns import UNKNOWN, Candidates, CandidateSet, Rankings, mark_rows

_Columns = TypeVar("_Columns", "Counts", "Ranks", Rankings)


_HIGHEST: Final = 1e9
"""A score above all log-probabilities."""


USUAL_SIZES: Final = (10, 50, 100, 500, 1000)
"""The usual numbers of candidates, without the true triple, if not all are ranked."""


class RankedBy(StrEnum):
    """The scores that candidates are ranked by, the simplest first."""

    PENALISED = "the log-probability, 100 nats lower unless proved"
    PLAIN = "the log-probability, proved or not"
    OUTCOME = "the outcome alone, proved or not"


class Ties(StrEnum):
    """The ranks that are recorded if candidates tie with the true one, the simplest first."""

    BOUNDS = "ties give both bounds"
    REALISTIC = "ties give the mean"
    OPTIMISTIC = "ties count as lower"
    PESSIMISTIC = "ties count as higher"
    ROUNDED_UP = "ties give the mean, rounded up"
    ROUNDED_DOWN = "ties give the mean, rounded down"
    ROUNDED_EVEN = "ties give the mean, a half rounded to the even rank"
    RANDOM = "ties are broken at random"


class Counted(StrEnum):
    """The candidates that are ranked, the simplest first."""

    ONCE = "each candidate once"
    ROWS = "each row, repeated ones too"
    FILTERED = "without known true triples"


class Mistake(StrEnum):
    """A common mistake in the code of a ranking; none comes first."""

    NONE = ""
    LOWEST_FIRST = "the lowest score ranks first"
    FROM_ZERO = "each rank is one too low, as if counted from 0"
    ONE_MORE = "each rank is one too high, as if the true triple were above itself"
    EXCHANGED = "the ranks of the head and the tail side are exchanged"
    TRUE_LAST = "the true triple ranks last, as if it were filtered out like a known one"
    FEW = "only the first candidates of each ranking count"
    SAMPLED = "only some candidates of each ranking count, as if drawn at random"
    UNPROVED_FIRST = "what is not proved ranks first, as NaN does in a descending sort"
    UNPROVED_UNCOUNTED = "what is not proved ranks neither above nor below anything, as NaN does when compared"
    KNOWN_FIRST = "known true triples rank first, as if masked by a score of 0"
    ANY_RELATION = "the filter leaves out what is true in any relation"


_OFFSETS: Final = {Mistake.FROM_ZERO: -1.0, Mistake.ONE_MORE: 1.0}
_ROUNDINGS: Final[Mapping[Ties, Callable[[Any], Any]]] = {
    Ties.ROUNDED_UP: np.ceil,
    Ties.ROUNDED_DOWN: np.floor,
    Ties.ROUNDED_EVEN: np.rint,
}
_OF_FILTER: Final = (Mistake.KNOWN_FIRST, Mistake.ANY_RELATION)


class RankingRule(NamedTuple):
    """A ranking rule.

    tolerance: the difference in nats below which two scores tie
    splits:    the splits whose known triples are left out; empty for all known triples
    most:      the number of candidates that count, for the mistakes FEW and SAMPLED
    filtered:  the only side on which known triples are left out; NONE for both sides
    """

    ranked_by: RankedBy = RankedBy.PENALISED
    ties: Ties = Ties.BOUNDS
    tolerance: float = RANK_TOLERANCE
    counted: Counted = Counted.ONCE
    splits: tuple[str, ...] = ()
    mistake: Mistake = Mistake.NONE
    most: int = 0
    filtered: Side = Side.NONE

    def describe(self) -> str:
        """Describe the rule in words."""
        ties = self.ties if self.mistake is not Mistake.SAMPLED else "any ties"
        within = f" (within {self.tolerance:g} nats)" if self.tolerance else ""
        known = f" of {' and '.join(self.splits)} alone" if self.splits else ""
        known += f" on the {self.filtered.name.lower()} side alone" if self.filtered < Side.NONE else ""
        mistake = f"; {self.mistake.value}" if self.mistake else ""
        most = f", {self.most:,} of them" if self.most else ""
        return f"by {self.ranked_by.value}; {ties}{within}; {self.counted.value}{known}{mistake}{most}"

    @property
    def offset(self) -> float:
        """The number that is added to each rank by mistake."""
        return _OFFSETS.get(self.mistake, 0.0)

    @property
    def is_right(self) -> bool:
        """True if the rule is not a mistake, neither of the ranking nor of its filter."""
        return not self.mistake and not self.splits and self.filtered is Side.NONE

    @property
    def counting(self) -> "RankingRule":
        """The rule without what only changes ranks after candidates were counted."""
        return self._replace(ties=Ties.BOUNDS, mistake=Mistake.NONE if self.offset else self.mistake)

    def find_left_out(self, candidates: Candidates, known: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return which candidates are known triples, int32 [n, 3], that the rule leaves out: bool [N]."""
        if self.counted is not Counted.FILTERED:
            return np.zeros(len(candidates.atom), np.bool_)
        if self.mistake is Mistake.ANY_RELATION:
            arguments = np.array([0, 1, 1], np.int32)
            candidates, known = candidates._replace(atom=candidates.atom * arguments), known * arguments
        is_left_out = find_known(candidates, known)
        return is_left_out if self.filtered is Side.NONE else is_left_out & (candidates.side == self.filtered)


class Counts(NamedTuple):
    """The counts of candidates in each group with a true candidate: int64 [n] each, by ascending key."""

    key: NDArray[np.int64]
    num_ranked: NDArray[np.int64]
    above: NDArray[np.int64]
    tied: NDArray[np.int64]


class Ranks(NamedTuple):
    """The ranks of groups, by ascending key. They need not be whole numbers. num_ranked: may be `UNKNOWN`."""

    key: NDArray[np.int64]
    num_ranked: NDArray[np.int64]
    optimistic: NDArray[np.float64]
    pessimistic: NDArray[np.float64]


def list_rules(
    ranked_by: Sequence[RankedBy], tolerances: Sequence[float], counted: Sequence[Counted]
) -> tuple[RankingRule, ...]:
    """Return the rules for the given scores, tolerances and counted candidates, the simplest first."""
    return tuple(
        RankingRule(by, ties, tolerance, each)
        for by in ranked_by
        for each in counted
        for ties in Ties
        for tolerance in ((0.0,) if by is RankedBy.OUTCOME else dict.fromkeys(tolerances))
    )


def list_mistakes(rules: Sequence[RankingRule], splits: Sequence[str], sizes: Sequence[int]) -> Iterator[RankingRule]:
    """Yield each rule with each single mistake.

    splits: the splits whose known triples a filter may leave out
    sizes:  the numbers of candidates to which rankings may be cut
    """
    few = [part for num in range(1, len(splits)) for part in combinations(splits, num)]
    for rule in rules:
        is_filtered = rule.counted is Counted.FILTERED
        if is_filtered:
            yield from (rule._replace(splits=part) for part in few)
            yield from (rule._replace(filtered=side) for side in (Side.HEAD, Side.TAIL))
        for mistake in Mistake:
            if mistake is Mistake.FEW or (mistake is Mistake.SAMPLED and rule.ties is Ties.BOUNDS):
                yield from (rule._replace(mistake=mistake, most=most) for most in sizes)
            elif mistake in _OF_FILTER:
                yield from [rule._replace(mistake=mistake)] * is_filtered
            elif mistake and mistake is not Mistake.SAMPLED:
                yield rule._replace(mistake=mistake)


def count_above(
    candidates: Candidates,
    truth: Truth,
    rule: RankingRule,
    known: NDArray[np.bool_] | None = None,
    margin: float = 0.0,
) -> Counts:
    """Count the candidates above the true one, and the candidates that tie with it.

    known:  which candidates are known true triples that the rule leaves out, bool [N]
    margin: the nats added to the score of each other candidate, for each step of the longest derivation in its group
    """
    is_true = truth.mark(candidates)
    key = group_keys(candidates)
    is_kept = np.isin(key, key[is_true])
    if rule.counted is Counted.FILTERED and known is not None and rule.mistake is not Mistake.KNOWN_FIRST:
        is_kept &= ~known | is_true
    kept = np.flatnonzero(is_kept)
    drawn = CandidateSet(*candidates[:3]).take(kept)
    if rule.counted is not Counted.ROWS and has_repeated(drawn):
        kept = kept[np.sort(drop_repeated(drawn))]
    # The true candidate comes first; of several, the first one.
    rows = kept[np.lexsort((~is_true[kept], key[kept]))]
    if rule.mistake is Mistake.FEW:
        _, first, num = np.unique(key[rows], return_index=True, return_counts=True)
        rows = rows[np.arange(len(rows)) - np.repeat(first, num) < rule.most]
    groups, first, num = np.unique(key[rows], return_index=True, return_counts=True)
    scores = _scores(candidates, rule.ranked_by)[rows]
    if rule.mistake is Mistake.LOWEST_FIRST:
        scores = -scores
    if rule.mistake is Mistake.KNOWN_FIRST and known is not None:
        scores = np.where(known[rows] & ~is_true[rows], 0.0, scores)
    if rule.mistake in (Mistake.UNPROVED_FIRST, Mistake.UNPROVED_UNCOUNTED):
        highest = _HIGHEST if rule.mistake is Mistake.UNPROVED_FIRST else np.nan
        scores = np.where(candidates.outcome[rows] == Outcome.PROVED, scores, highest)
    gap = scores - np.repeat(scores[first], num)
    if rule.mistake is Mistake.TRUE_LAST:
        gap = np.where(is_true[rows], gap, np.inf)
    if margin and len(rows) and rule.ranked_by is not RankedBy.OUTCOME:
        longest = np.maximum.reduceat(candidates.num_steps[rows].astype(np.int64), first)
        gap += margin * np.repeat(longest.clip(min=1), num)
    counts = Counts(groups, num, *count_gaps(gap, np.append(first, len(rows)), rule.tolerance))
    if rule.mistake is not Mistake.EXCHANGED:
        return counts
    query, side = np.divmod(groups, 4)
    # A side of a query without its other side has nothing to be exchanged with.
    exchanged = query * 4 + np.where(side < Side.NONE, Side.TAIL - side, side)
    counts = counts._replace(key=exchanged)
    return take_rows(counts, np.argsort(exchanged, kind="stable"))


def _scores(candidates: Candidates, ranked_by: RankedBy) -> NDArray[np.float64]:
    if ranked_by is RankedBy.PENALISED:
        return ranking_scores(candidates)
    if ranked_by is RankedBy.PLAIN:
        return candidates.log_probability
    is_proved: NDArray[np.bool_] = candidates.outcome == Outcome.PROVED
    return is_proved.astype(np.float64)


def give_ranks(counts: Counts, rule: RankingRule) -> Ranks:
    """Return the ranks by the tie rule of a rule, with its mistakes in them.

    For random ties, the reciprocal of a rank is the mean over all possible ranks.
    """
    ties, offset = rule.ties, rule.offset
    optimistic = 1.0 + counts.above.astype(np.float64)
    pessimistic = optimistic + counts.tied.astype(np.float64)
    if ties is Ties.REALISTIC or ties in _ROUNDINGS:
        mean = ((optimistic + pessimistic) / 2).astype(np.float64)
        optimistic = pessimistic = _ROUNDINGS[ties](mean) if ties in _ROUNDINGS else mean
    elif ties is Ties.OPTIMISTIC:
        pessimistic = optimistic
    elif ties is Ties.PESSIMISTIC:
        optimistic = pessimistic
    elif ties is Ties.RANDOM:
        most = int((counts.above + counts.tied).max(initial=0)) + 2
        harmonic = np.concatenate(([0.0], np.cumsum(1 / np.arange(1, most))))
        reciprocal = harmonic[counts.above + counts.tied + 1] - harmonic[counts.above]
        optimistic = pessimistic = ((counts.tied + 1) / reciprocal).astype(np.float64)
    return Ranks(counts.key, counts.num_ranked, optimistic + offset, pessimistic + offset)


def ranks_of(rankings: Rankings) -> Ranks:
    """Return recorded ranks by ascending key; for a group recorded twice, the first."""
    key, rows = np.unique(group_keys(rankings), return_index=True)
    return Ranks(key, rankings.num_ranked[rows].astype(np.int64), rankings.optimistic[rows], rankings.pessimistic[rows])


def rankings_of(ranks: Ranks) -> Rankings:
    """Return ranks as a trace holds them."""
    query, side = np.divmod(ranks.key, 4)
    return Rankings(query.astype(np.int32), side.astype(np.int8), ranks.num_ranked.astype(np.uint32), *ranks[2:])


def find_unexplained(low: Counts, high: Counts, rule: RankingRule, recorded: Ranks) -> NDArray[np.int64]:
    """Return the ascending keys of the groups whose recorded ranks differ from a rule's.

    low, high: the counts of the candidates with the margin subtracted from and added to their scores; equal without a margin

    Groups without ranks, or without a true candidate, are not judged.
    """
    ties = rule.ties
    key, ours, theirs = np.intersect1d(low.key, recorded.key, assume_unique=True, return_indices=True)
    least, most, found = take_rows(low, ours), take_rows(high, ours), take_rows(recorded, theirs)
    is_whole = found.optimistic == found.pessimistic
    bounds = rule._replace(ties=Ties.BOUNDS if ties is Ties.RANDOM else ties)
    first, last = (give_ranks(each, bounds) for each in (least, most))
    num_ranked = least.num_ranked
    if rule.mistake is Mistake.SAMPLED:
        # A candidate above the true one is missing, or one that is not above it.
        missing = num_ranked - np.minimum(rule.most, num_ranked)
        fits = (found.optimistic >= np.maximum(1, first.optimistic - missing)) & (found.pessimistic <= last.pessimistic)
        fits &= missing.any() & (found.num_ranked != UNKNOWN)
        num_ranked = num_ranked - missing
    elif ties is Ties.RANDOM:
        fits = is_whole & (found.optimistic == np.floor(found.optimistic))
        fits &= (found.optimistic >= first.optimistic) & (found.pessimistic <= last.pessimistic)
    else:
        fits = is_whole | (ties is Ties.BOUNDS)
        fits &= (first.optimistic <= found.optimistic) & (found.optimistic <= last.optimistic)
        fits &= (first.pessimistic <= found.pessimistic) & (found.pessimistic <= last.pessimistic)
    unexplained: NDArray[np.int64] = key[~(fits & ((found.num_ranked == num_ranked) | (found.num_ranked == UNKNOWN)))]
    return unexplained


def drop_roundings(found: dict[RankingRule, int]) -> dict[RankingRule, int]:
    """Return rules and the ranks that each leaves unexplained, with rounded means only if every other rule leaves more."""
    least = min(num for rule, num in found.items() if rule.ties not in (*_ROUNDINGS, Ties.RANDOM))
    return {rule: num for rule, num in found.items() if rule.ties not in _ROUNDINGS or num < least}


class RuleRanker:
    """A ranker that applies a rule in the same way as its trace, including the ranks there that the rule does not explain.

    The difference between a recorded rank and the rule's rank is added to the rank of the same group of other candidates. If
    ties are broken at random, a recorded rank is kept as long as the numbers of candidates above and of ties do not change. A
    group that the trace does not rank stays unranked, and a group without a known true candidate keeps its recorded rank.
    """

    def __init__(
        self, rule: RankingRule, truth: Truth, candidates: Candidates, recorded: Ranks, known: NDArray[np.int32]
    ) -> None:
        self._rule, self._truth, self._known = rule, truth, known
        own = self._count(candidates)
        self._unranked = np.setdiff1d(own.key, recorded.key, assume_unique=True)
        self._fixed = take_rows(recorded, ~np.isin(recorded.key, own.key))
        _, ours, theirs = np.intersect1d(own.key, recorded.key, assume_unique=True, return_indices=True)
        self._own, self._recorded = take_rows(own, ours), take_rows(recorded, theirs)
        computed = give_ranks(self._own, rule)
        self._offsets = [then - now for then, now in zip(self._recorded[2:], computed[2:], strict=True)]

    @property
    def offsets(self) -> dict[int, tuple[float, float]]:
        """The differences of the recorded optimistic and pessimistic ranks from the rule's, by the key of their group."""
        return dict(
            zip(self._own.key.tolist(), zip(*(each.tolist() for each in self._offsets), strict=True), strict=True)
        )

    def __call__(self, candidates: Candidates) -> Rankings:
        """Rank the trace's own candidates, or others."""
        counts = self._count(candidates)
        counts = take_rows(counts, ~np.isin(counts.key, self._unranked))
        ranks = give_ranks(counts, self._rule)
        _, new, own = np.intersect1d(counts.key, self._own.key, assume_unique=True, return_indices=True)
        now, then = take_rows(counts, new), take_rows(self._own, own)
        is_same = (now.num_ranked == then.num_ranked) & (now.above == then.above) & (now.tied == then.tied)
        is_random = self._rule.ties is Ties.RANDOM
        for column, offset, recorded in zip(ranks[2:], self._offsets, self._recorded[2:], strict=True):
            bounds = 1.0 + min(0.0, self._rule.offset), now.num_ranked + max(0.0, self._rule.offset)
            moved = column[new] if is_random else np.clip(column[new] + offset[own], *bounds)
            column[new] = np.where(is_same, recorded[own], moved)
        fixed = take_rows(self._fixed, ~np.isin(self._fixed.key, counts.key))
        joined = Ranks(*(np.concatenate(pair) for pair in zip(ranks, fixed, strict=True)))
        return rankings_of(take_rows(joined, np.argsort(joined.key, kind="stable")))

    def _count(self, candidates: Candidates) -> Counts:
        return count_above(candidates, self._truth, self._rule, self._rule.find_left_out(candidates, self._known))


def find_known(candidates: Candidates | CandidateSet, known: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return which candidates are among known triples, int32 [n, 3]: bool [N]."""
    return mark_rows([*candidates.atom.T], [*known.T])


def has_repeated(candidates: Candidates | CandidateSet) -> bool:
    """Return whether a candidate is listed twice."""
    return len(drop_repeated(candidates)) < len(candidates.query)


def take_rows(columns: _Columns, rows: Any) -> _Columns:
    """Select rows of counts, ranks or rankings; `rows` are indices or a mask."""
    every: Any = columns
    return type(columns)(*(column[rows] for column in every))
