"""The pattern in the differences of ranks, as far as ranks show it without the scores of candidates."""

from collections.abc import Iterator
from itertools import combinations, product
from math import comb
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.errors import count_of
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.program.outcomes import Side
from kgverify.ranking.draw import group_rows, list_excluded, number_atoms
from kgverify.ranking.rank import group_keys
from kgverify.ranking.rules import (
    Counts,
    Mistake,
    RankingRule,
    Ties,
    find_unexplained,
    ranks_of,
    take_rows,
)
from kgverify.trace.model.columns import UNKNOWN, Rankings

FEWEST: Final = 3
"""The fewest ranks that make a pattern."""
MOST_RELATIONS: Final = 3
MOST_CHANCE: Final = 1e-3
"""The largest probability of a place in a random draw of as many ranks for it to be named."""
_SPLITS: Final = ("train", "valid", "test")


class KnownCounts(NamedTuple):
    """The candidates of Q queries and sides in a graph.

    size:  int64 [Q]     all candidates that are not known, and the true triple
    known: int64 [Q, 8]  the other known triples by the splits that hold them: 1 for train, 2 for valid, 4 for test, added
    """

    size: NDArray[np.int64]
    known: NDArray[np.int64]

    def lacked_by(self, lacking: tuple[int, ...]) -> NDArray[np.int64]:
        """Count the known triples that a filter without some splits does not leave out: int64 [Q]."""
        own = sum(1 << i for i in lacking)
        num: NDArray[np.int64] = self.known[:, [mask for mask in range(1, 8) if mask & ~own == 0]].sum(1)
        return num


def count_known(graph: KnowledgeGraph, triple: NDArray[np.int32], side: NDArray[np.int64]) -> KnownCounts:
    """Count the candidates of triples, int32 [Q, 3], on a side, int64 [Q], by what the graph knows about them."""
    size, known = np.ones(len(side), np.int64), np.zeros((len(side), 8), np.int64)
    num_constants = len(graph.program.symbols.constants)
    splits = [graph.queries(split) if len(getattr(graph, split)) else triple[:0] for split in _SPLITS]
    numbers = [number_atoms(atoms, num_constants) for atoms in splits]
    for group in group_rows(graph, triple, side):
        size[group.rows] += group.num_eligible
        rows, atoms = list_excluded(group, triple, side)
        number = number_atoms(atoms, num_constants)
        mask = np.array([1, 2, 4]) @ np.array([np.isin(number, own) for own in numbers])
        np.add.at(known, (rows, mask), (atoms != triple[rows]).any(1))
    return KnownCounts(size, known)


def describe_differences(
    expected: Rankings,
    actual: Rankings,
    relation: NDArray[Any],
    graph: KnowledgeGraph | None,
    triple: NDArray[np.int32],
) -> Iterator[str]:
    """Yield the patterns that hold for every rank of both sides, with the number of ranks that show each.

    relation: the name of the relation of each expected ranking; triple: int32 [n, 3], its triple in the ids of the graph
    """
    for own, other, role in ((expected, actual, "actual"), (actual, expected, "expected")):
        for side in (Side.HEAD, Side.TAIL):
            if num := int((own.side == side).sum()) * (not (other.side == side).any()):
                yield f"the {side.name.lower()} side is not ranked by the {role} side: {count_of(num, 'rank')}"
    _, left, right = np.intersect1d(group_keys(expected), group_keys(actual), return_indices=True)
    found = _Pairs(take_rows(expected, left), take_rows(actual, right))
    if found.num_differing < FEWEST:
        return
    yield from found.describe_places(relation[left])
    sides = found.ranks[0].side.astype(np.int64)
    counts = None if graph is None or Side.NONE in sides else count_known(graph, triple[left], sides)
    size = None if UNKNOWN in found.ranks[0].num_ranked else found.ranks[0].num_ranked.astype(np.int64)
    size = size if counts is None else counts.size
    yield from list(found.describe_rules(size)) or list(found.describe_filter(counts)) or found.describe_largest()


def _list_mistakes(own: Rankings, size: NDArray[np.int64] | None) -> Iterator[tuple[Mistake, Counts]]:
    """Yield the counts that ranks tell, int64 or with halves, and those that some mistakes make of them."""
    key, low, high = group_keys(own), own.optimistic, own.pessimistic
    above: Any = low - 1
    tied: Any = high - low
    counts = Counts(key, own.num_ranked.astype(np.int64), above, tied)
    yield from ((mistake, counts) for mistake in (Mistake.NONE, Mistake.ONE_MORE, Mistake.FROM_ZERO))
    exchanged = counts._replace(key=key + 1 - 2 * (key % 4))
    yield Mistake.EXCHANGED, take_rows(exchanged, np.argsort(exchanged.key))
    if size is not None:
        last: Any = size - high
        yield Mistake.LOWEST_FIRST, counts._replace(above=last)
        yield Mistake.TRUE_LAST, counts._replace(above=size - 1, tied=np.zeros_like(size))


def _list_rules(own: Rankings, size: NDArray[np.int64] | None) -> Iterator[tuple[str, RankingRule, Counts]]:
    for (mistake, counts), ties in product(_list_mistakes(own, size), Ties):
        tie = ties.value if counts.tied.any() or ties not in list(Ties)[:2] else ""
        yield "; ".join(filter(None, (tie, mistake.value))), RankingRule(ties=ties, mistake=mistake), counts


class _Pairs:
    """The ranks of the queries and sides that both sides rank, by query and side."""

    def __init__(self, expected: Rankings, actual: Rankings) -> None:
        self.ranks = expected, actual
        self.means = [(own.optimistic + own.pessimistic) / 2 for own in self.ranks]
        self.differs = self.means[0] != self.means[1]
        self.num, self.num_differing = len(self.differs), int(self.differs.sum())

    def describe_places(self, relation: NDArray[Any]) -> Iterator[str]:
        """Yield the side and the relations that hold all differences, unless as many ranks drawn at random might do so."""
        names = np.array([Side(side).name.lower() for side in self.ranks[0].side.tolist()])
        for kind, values in (("side", names), ("relation", relation)):
            holding = np.unique(values[self.differs])
            num_inside = int(np.isin(values, holding).sum())
            # The probability that ranks drawn at random all lie inside. Any other values of the same number might hold them.
            chance = comb(num_inside, self.num_differing) / comb(self.num, self.num_differing)
            chance *= comb(len(np.unique(values)), len(holding))
            if len(holding) <= MOST_RELATIONS and chance < MOST_CHANCE:
                where = f"the {kind}{'' if len(holding) == 1 else 's'} {', '.join(holding)}"
                inside = f"{self.num_differing:,} of {num_inside:,} ranks differ there"
                yield f"only {where}: {inside}, none of {self.num - num_inside:,} elsewhere"

    def describe_rules(self, size: NDArray[np.int64] | None) -> Iterator[str]:
        """Yield the known rule or mistake that turns all ranks of one side into those of the other, if there is one.

        size: the numbers of candidates, int64 [n]
        """
        for role, other, i in (("actual", "expected", 0), ("expected", "actual", 1)):
            one = ranks_of(self.ranks[1 - i]._replace(num_ranked=np.full(self.num, UNKNOWN, np.uint32)))
            for words, rule, counts in _list_rules(self.ranks[i], size):
                if len(np.intersect1d(counts.key, one.key)) == self.num and not len(
                    find_unexplained(counts, counts, rule, one)
                ):
                    yield f"all {self.num:,} {role} ranks follow from the {other} ones: {words}"
                    return
        gap = (self.means[1] - self.means[0])[self.differs]
        if (gap == gap[0]).all() and gap[0]:
            more = "higher" if gap[0] > 0 else "lower"
            yield f"each of the {self.num_differing:,} actual ranks that differ is {abs(gap[0]):g} {more}"

    def describe_filter(self, counts: KnownCounts | None) -> Iterator[str]:
        """Yield the splits that a filter may lack, if the numbers of their known triples allow each difference."""
        gap = self.means[1] - self.means[0]
        for role, gaps in (("actual", gap), ("expected", -gap)):
            if counts is None or not gap.any():
                return
            lacked = {part: counts.lacked_by(part) for num in (1, 2, 3) for part in combinations(range(3), num)}
            fitting = {
                part: most
                for part, most in lacked.items()
                if ((gaps >= 0) & (gaps <= most)).all() and 3 * self.num_differing >= (most > 0).sum()
            }
            if fitting:
                # Of several, the one with the fewest known triples is the strictest.
                part, most = min(fitting.items(), key=lambda each: int(each[1].sum()))
                splits = " and ".join(_SPLITS[i] for i in part)
                is_exact = (gaps == most).all()
                yield (
                    f"all {self.num:,} {role} ranks are higher by {'exactly' if is_exact else 'at most'} the number of other"
                    f" known triples of {splits}, and {int((most == 0).sum()):,} without any are equal: "
                    f"{Mistake.KNOWN_FIRST.value if is_exact else f'as if the {role} filter lacked {splits}'}"
                )

    def describe_largest(self) -> Iterator[str]:
        """Yield the largest rank of one side if the ranks of the other side go far beyond it."""
        for role, i in (("actual", 1), ("expected", 0)):
            low, high = self.means[i], self.means[1 - i]
            if not (low <= high).all() or 2 * low.max() > high.max():
                continue
            num = int((high > low.max()).sum())
            yield f"no {role} rank is above {low.max():g}, and {num:,} of the others are; none of {self.num:,} is higher"
