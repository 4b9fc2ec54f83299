"""The stage `rank`: the rank of the true triple among its corruptions, with ties won, shared or lost.

Candidates are grouped by query and side, in the order of the draw: the true triple comes first.
"""

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.errors import InternalError, count_of
from kgverify.program.outcomes import NOT_PROVED_PENALTY, Outcome, Side
from kgverify.trace.model.columns import Candidates, CandidateSet, Rankings, count_where, number_rows


class Truth(NamedTuple):
    """The true triples by query and side.

    key:  int64 [n], ascending  the keys of query and side (`group_keys`)
    atom: int32 [n, 3]
    how:  how the true triples were found, in words; empty without any
    """

    key: NDArray[np.int64]
    atom: NDArray[np.int32]
    how: tuple[str, ...] = ()

    def mark(self, candidates: Candidates | CandidateSet) -> NDArray[np.bool_]:
        """Return which candidates are true triples: bool [N]."""
        key = group_keys(candidates)
        if not len(self.key):
            return np.zeros(len(key), np.bool_)
        nearest = np.searchsorted(self.key, key).clip(max=len(self.key) - 1)
        is_true: NDArray[np.bool_] = (self.key[nearest] == key) & (self.atom[nearest] == candidates.atom).all(1)
        return is_true

    def join(self, other: "Truth") -> "Truth":
        """Return these true triples, and add those of `other` for groups without one here."""
        is_new = ~np.isin(other.key, self.key)
        key, atom = np.append(self.key, other.key[is_new]), np.concatenate((self.atom, other.atom[is_new]))
        order = np.argsort(key)
        return Truth(key[order], atom[order], tuple(dict.fromkeys(self.how + other.how * bool(is_new.any()))))


NO_TRUTH = Truth(np.zeros(0, np.int64), np.zeros((0, 3), np.int32))


def group_keys(of: Any) -> NDArray[np.int64]:
    """Return a key for the query and side of each row of candidates or rankings, in the same order: int64 [n]."""
    keys: NDArray[np.int64] = key_of(of.query.astype(np.int64), of.side)
    return keys


def key_of(query: Any, side: Any) -> Any:
    """Return the key of a query and side, or those of arrays of both."""
    return query * 4 + side


def find_truth(candidates: Candidates | CandidateSet, labels: NDArray[Any] | None, rankings: Rankings | None) -> Truth:
    """Return the true triples that the candidates of one trace show without doubt.

    labels: not 0 where a candidate is a true triple, [N]; None if the trace has no labels

    Without labels, the true triple of a query with both sides is the only candidate that both sides share. In a ranked group
    of one candidate, it is this candidate. It is the first candidate of each group if in every group the other candidates
    ascend, and in at least one group the first candidate is out of order.
    """
    key = group_keys(candidates)
    if labels is not None:
        rows = np.flatnonzero(labels)
        alone, first, counts = np.unique(key[rows], return_index=True, return_counts=True)
        is_sure = counts == 1
        return Truth(alone[is_sure], candidates.atom[rows][first[is_sure]], ("as labelled",))
    found = _find_shared(candidates)
    if rankings is None:
        return found
    is_ranked = np.isin(key, group_keys(rankings))
    only, first, counts = np.unique(key, return_index=True, return_counts=True)
    alone = first[(counts == 1) & is_ranked[first]]
    found = found.join(Truth(key[alone], candidates.atom[alone], ("the only candidate of a query and side",)))
    if np.isin(only[is_ranked[first]], found.key).all():
        return found
    return found.join(_find_first(candidates, found))


def _find_shared(candidates: Candidates | CandidateSet) -> Truth:
    """Return the candidate that the head side and the tail side of a query share, for queries with exactly one."""
    rows = drop_repeated(candidates)
    rows = rows[candidates.side[rows] != Side.NONE]
    (pairs,) = number_rows((candidates.query[rows], *candidates.atom[rows].T))
    _, first, counts = np.unique(pairs, return_index=True, return_counts=True)
    shared = rows[first[counts == 2]]
    query, counts = np.unique(candidates.query[shared], return_counts=True)
    shared = shared[np.isin(candidates.query[shared], query[counts == 1])]
    query = candidates.query[shared].astype(np.int64)
    key = np.concatenate([key_of(query, side) for side in (Side.HEAD, Side.TAIL)])
    atom = np.concatenate([candidates.atom[shared]] * 2)
    order = np.argsort(key)
    return Truth(key[order], atom[order], ("the candidate that both sides of a query share",) * bool(len(key)))


def _find_first(candidates: Candidates | CandidateSet, known: Truth) -> Truth:
    """Return the first candidate of each group, if in all groups the others ascend and in some the first does not fit."""
    key = group_keys(candidates)
    is_first = np.ones(len(key), np.bool_)
    is_first[1:] = key[1:] != key[:-1]
    first = np.flatnonzero(is_first)
    if len(np.unique(key[first])) != len(first):
        return NO_TRUTH
    (numbers,) = number_rows([*candidates.atom.T])
    ascends = np.diff(numbers, prepend=numbers[:1]) > 0
    is_second = np.zeros(len(key), np.bool_)
    is_second[1:] = is_first[:-1] & ~is_first[1:]
    is_drawn = ascends[~is_first & ~is_second].all() and not ascends[is_second].all()
    agrees = not known.mark(candidates)[~is_first].any()
    if not (is_drawn and agrees):
        return NO_TRUTH
    first = first[np.argsort(key[first])]
    return Truth(key[first], candidates.atom[first], ("the first of each query and side: the others ascend",))


class Groups(NamedTuple):
    """N candidates in G groups by query and side, ascending.

    starts:   int64 [G + 1]
    query:    int32 [G]; side: int8 [G]
    has_true: bool  [G]  whether the first candidate of the group is the true triple; no other candidate can be
    """

    starts: NDArray[np.int64]
    query: NDArray[np.int32]
    side: NDArray[np.int8]
    has_true: NDArray[np.bool_]

    @property
    def counts(self) -> NDArray[np.int64]:
        """The number of candidates of each group: int64 [G]."""
        counts: NDArray[np.int64] = np.diff(self.starts)
        return counts

    @property
    def true(self) -> NDArray[np.int64]:
        """The rows of the true triples."""
        return self.starts[:-1][self.has_true]

    def repeat(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the value of each candidate's group: [N] from [G]."""
        return np.repeat(values, self.counts, axis=0)

    def count_where(self, mask: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Count the candidates of each group for which the mask, bool [N], holds: int64 [G]."""
        return count_where(mask, self.starts)


def find_groups(candidates: Candidates | CandidateSet, triples: NDArray[np.int32]) -> Groups | None:
    """Return the groups of candidates that are in the order of the draw, without repetitions; None for any other order.

    triples: int32 [n, 3], the split that `candidates.query` points into. A group's corruptions ascend and share a predicate.
    """
    groups = divide(candidates, triples)
    if not len(candidates.query):
        return groups
    atom, first, counts = candidates.atom, groups.starts[:-1], groups.counts
    group = group_keys(groups)
    predicate, arguments = atom[:, 0], _pack(atom)
    triple = triples[groups.query]
    is_first = np.zeros(len(atom), np.bool_)
    is_first[first] = True
    # A true triple at the front is not among the ascending corruptions.
    is_apart = is_first.copy()
    is_apart[(first + 1)[groups.has_true & (counts > 1)]] = True
    is_ascending = arguments[1:] > arguments[:-1]
    is_ascending |= is_apart[1:]
    is_true = arguments == groups.repeat(_pack(triple))
    is_true &= ~is_first
    is_drawn = (
        (group[1:] > group[:-1]).all()
        and is_ascending.all()
        and (predicate == groups.repeat(predicate[first])).all()
        and not (is_true & (predicate == groups.repeat(triple[:, 0]))).any()
    )
    return groups if is_drawn else None


def divide(candidates: Candidates | CandidateSet, triples: NDArray[np.int32]) -> Groups:
    """Return the groups of candidates in the order of `find_groups`, except that corruptions need not ascend."""
    query, side = candidates.query, candidates.side
    is_next = np.ones(len(query), np.bool_)
    is_next[1:] = query[1:] != query[:-1]
    is_next[1:] |= side[1:] != side[:-1]
    first = np.flatnonzero(is_next)
    has_true = (candidates.atom[first] == triples[query[first]]).all(1)
    return Groups(np.append(first, len(query)), query[first], side[first], has_true)


def sort_rows(candidates: Candidates | CandidateSet, triples: NDArray[np.int32]) -> NDArray[np.int64]:
    """Sort the rows by query and side, with a true triple at the front of its group: int64 [N]."""
    is_corruption = (candidates.atom != triples[candidates.query]).any(1)
    return np.lexsort((is_corruption, group_keys(candidates)))


def drop_repeated(candidates: Candidates | CandidateSet) -> NDArray[np.int64]:
    """Return the first row of each distinct candidate: int64 [m]."""
    (numbers,) = number_rows((group_keys(candidates), *candidates.atom.T))
    rows: NDArray[np.int64] = np.unique(numbers, return_index=True)[1]
    return rows


def take_candidates(candidates: Candidates, rows: Any) -> Candidates:
    """Select candidates; `rows` are indices, a mask or a slice."""
    columns: Any = candidates
    return Candidates(*(column[rows] for column in columns))


def _pack(atoms: NDArray[np.int32]) -> NDArray[np.int64]:
    """Pack the arguments of atoms, int32 [n, 3], into numbers that sort the same way: int64 [n]."""
    packed: NDArray[np.int64] = atoms[:, 1].astype(np.int64) << 32
    packed += atoms[:, 2]
    return packed


Rank = Callable[[Candidates, NDArray[np.int32], float], Rankings]
"""(candidates, triples of the split int32 [n, 3], tolerance in nats) -> rankings."""

RANK_TOLERANCE: Final = 1e-4
"""The difference in nats below which two ranking scores of a verified run are a tie, so that rounding cannot change ranks."""


def ranking_scores(candidates: Candidates) -> NDArray[np.float64]:
    """Return the log-probability in nats, minus the penalty unless the outcome is PROVED: float64 [N]."""
    scores: NDArray[np.float64] = NOT_PROVED_PENALTY * (candidates.outcome != Outcome.PROVED)
    return np.subtract(candidates.log_probability, scores, out=scores)


def rank_candidates(candidates: Candidates, triples: NDArray[np.int32], tolerance: float = RANK_TOLERANCE) -> Rankings:
    """Rank the true triple of each query and side that has one. Return rows in the order of (query, side).

    triples: int32 [n, 3], the split that `candidates.query` points into. A candidate listed twice counts once.
    """
    return rank_scores(candidates, ranking_scores(candidates), triples, tolerance)


def rank_scores(
    candidates: Candidates | CandidateSet, scores: NDArray[np.float64], triples: NDArray[np.int32], tolerance: float
) -> Rankings:
    """Rank by given scores, float64 [N]; otherwise like `rank_candidates`."""
    groups = find_groups(candidates, triples)
    if groups is None:
        drawn = CandidateSet(*candidates[:3])
        rows = drop_repeated(drawn)
        rows = rows[sort_rows(drawn.take(rows), triples)]
        scores, groups = scores[rows], divide(drawn.take(rows), triples)
    above, tied = count_gaps(scores - groups.repeat(scores[groups.starts[:-1]]), groups.starts, tolerance)
    optimistic = 1.0 + above.astype(np.float64)
    columns: Any = groups.query, groups.side, groups.counts.astype(np.uint32), optimistic, optimistic + tied
    return Rankings(*(column[groups.has_true] for column in columns))


def count_gaps(
    gap: NDArray[np.float64], starts: NDArray[np.int64], tolerance: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count, for each group, the scores above its first score and the scores that tie with it: int64 [G].

    gap: float64 [N], nats, from the first score of the group to each score; starts: int64 [G + 1]
    """
    is_above, is_tied = compare_gaps(gap, tolerance)
    is_above[starts[:-1]] = is_tied[starts[:-1]] = False
    return count_where(is_above, starts), count_where(is_tied, starts)


def compare_gaps(gap: NDArray[np.float64], tolerance: float) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which scores are above and which tie, from their gaps in nats to the true triple's score."""
    if not tolerance:
        return gap > 0, gap == 0
    return gap >= tolerance, (gap < tolerance) & (gap > -tolerance)


HITS_AT: Final = (1, 3, 10)
MRR: Final = "both.realistic.mean_reciprocal_rank"
"""The key of the headline metric."""


def compute_metrics(rankings: Rankings) -> dict[str, float]:
    """Compute MRR and Hits@1, 3, 10 for head, tail and both sides, for each rank type.

    A side without rankings has no keys. InternalError for a mean reciprocal rank outside (0, 1].
    """
    ranks = {
        "optimistic": rankings.optimistic,
        "realistic": (rankings.optimistic + rankings.pessimistic) / 2,
        "pessimistic": rankings.pessimistic,
    }
    sides = {
        "head": rankings.side == Side.HEAD,
        "tail": rankings.side == Side.TAIL,
        "both": np.ones(len(rankings.side), np.bool_),
    }
    metrics = {}
    for side, mask in sides.items():
        for kind, values in ranks.items() if mask.any() else ():
            reciprocal = _mean(1 / values[mask])
            if not 0 < reciprocal <= 1:
                raise InternalError(f"the mean reciprocal rank is {reciprocal}, outside (0, 1]")
            metrics[f"{side}.{kind}.mean_reciprocal_rank"] = reciprocal
            for k in HITS_AT:
                metrics[f"{side}.{kind}.hits_at_{k}"] = _mean(values[mask] <= k)
    return metrics


def describe_hits(num_ranked: NDArray[Any]) -> list[str]:
    """Return a note if rankings have k candidates or fewer, since hits at k says nothing about them.

    num_ranked: the number of candidates of each ranking, int [n]
    """
    total = count_of(len(num_ranked), "ranking")
    return [
        f"{num:,} of {total} {'has' if num == 1 else 'have'} {count_of(k, 'candidate')} or fewer:"
        f" each is a hit at {k}, whatever its scores"
        for k in HITS_AT
        if (num := int((num_ranked <= k).sum()))
    ]


def _mean(values: NDArray[Any]) -> float:
    """Return the mean, rounded once, so that it does not depend on the order of the values."""
    return math.fsum(values.tolist()) / len(values)
