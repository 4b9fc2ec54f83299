"""Candidates that several processes shared among them: lost, doubled, or computed by the wrong rank."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.align import SourceCandidates, identify
from kgverify.comparison.classify import Finding
from kgverify.comparison.columns import name_candidate
from kgverify.comparison.comparable import ComparablePair, StepSource
from kgverify.comparison.equal_columns import has_equal_columns
from kgverify.comparison.result import NO_CANDIDATE, ROLES, Divergence, Level
from kgverify.errors import count_of
from kgverify.program.outcomes import DifferenceClass, Stage
from kgverify.trace.model.columns import number_rows
from kgverify.trace.model.header import Part

MOST_RANKS: Final = 20
"""The notes describe at most this many ranks."""


class Shards:
    """The candidates of two sides, at least one of which was recorded by several processes.

    faults: messages about missing parts, and about the trace of one process unless both sides are of the same rank

    Equal candidates have one number. The ranks of divergences are those of the actual side, if it has ranks.
    """

    def __init__(
        self, sources: Sequence[StepSource], candidates: Sequence[SourceCandidates], pair: ComparablePair
    ) -> None:
        self._sources, self._pair = sources, pair
        self._tables = [identify(side.take(np.arange(side.num_candidates))) for side in candidates]
        _, first, inverse = np.unique(
            np.concatenate(number_rows(*self._tables)), return_index=True, return_inverse=True
        )
        self._query = np.concatenate([table[0] for table in self._tables])[first].astype(np.int64)
        self._ids = np.split(inverse, [len(self._tables[0][0])])
        self._order = [np.argsort(ids, kind="stable") for ids in self._ids]
        self._counts = [np.bincount(ids, minlength=len(first)) for ids in self._ids]
        self._members = [source.members for source in sources]
        sizes = [[(each.part.rank, each.num_candidates) for each in own] for own in self._members]
        self._ranks = [np.repeat(*np.array(own, np.int64).reshape(-1, 2).T) for own in sizes]
        # A query and side of which each side has candidates that the other one lacks drew other candidates.
        only = [counts[ids] == 0 for counts, ids in zip(self._counts[::-1], self._ids, strict=True)]
        drawn = [
            set(zip(*(column[rows].tolist() for column in table[:2]), strict=True))
            for table, rows in zip(self._tables, only, strict=True)
        ]
        self._redrawn = drawn[0] & drawn[1]
        self._side = int(bool(self._members[1]))
        self._owners, self._rule = self._find_owners()
        parts = [source.header.part for source in sources]
        self.faults = [fault for source in sources for fault in source.faults] + [
            f"{source.trace.source} is the trace of rank {part.rank} of {part.world}: give the folder with all"
            for source, part in zip(sources, parts, strict=True)
            if part is not None and part.world > 1 and parts[0] != parts[1]
        ]

    def explain(self, found: Divergence) -> Divergence | None:
        """Return a candidate that only one side has as lost or doubled; None if no process lost or doubled it."""
        side = int(found.expected == NO_CANDIDATE)
        number = int(self._ids[side][found.candidate])
        if self._counts[1 - side][number]:
            return self._tell_doubled(found, side, number) if self._members[side] else None
        query = tuple(int(column[found.candidate]) for column in self._tables[side][:2])
        if not self._members[1 - side] or self.faults or query in self._redrawn:
            return None
        owner = int(self._owners[number]) if self._side != side else -1
        belongs = f"; {self._rule}, it belongs to rank {owner}" if owner >= 0 else ""
        words = f"no rank of the {ROLES[1 - side]} side computed it{belongs}"
        return _tell(found, DifferenceClass.LOST, words, owner if owner >= 0 else self._rank_of(found))

    def find(self) -> Iterator[Divergence]:
        """Yield the candidates that both sides doubled, and those that the wrong rank computed."""
        ids, ranks, owners = self._ids[self._side], self._ranks[self._side], self._owners
        for number in np.flatnonzero(np.minimum(*self._counts) > 1).tolist() if all(self._members) else ():
            found = self._diverge(number, self._name_ranks(0, number), self._name_ranks(1, number))
            yield self._tell_doubled(found, self._side, number)
        is_single = (self._counts[0] == 1) & (self._counts[1] == 1)
        groups = defaultdict[tuple[int, int], list[int]](list)
        for row in np.flatnonzero(((owners >= 0) & is_single)[ids] & (owners[ids] != ranks)).tolist():
            groups[int(owners[ids[row]]), int(ranks[row])].append(int(ids[row]))
        for (owner, rank), numbers in groups.items():
            for number, other in zip_longest(numbers, groups.get((rank, owner), [])[: len(numbers)]):
                words = f"rank {rank} computed it; {self._rule}, it belongs to rank {owner}"
                words += "" if other is None else f", which computed {self._name(other)['atom']} in exchange"
                yield _tell(
                    self._diverge(number, f"rank {owner}", f"rank {rank}"), DifferenceClass.WRONG_RANK, words, rank
                )

    def name_ranks(
        self, found: Sequence[Divergence], findings: Sequence[Finding]
    ) -> tuple[list[Divergence], tuple[Finding, ...]]:
        """Return the divergences with their ranks, and name the candidates whose derivations others hold."""
        ranked = [each if each.rank >= 0 else msgspec.structs.replace(each, rank=self._rank_of(each)) for each in found]
        begun = {each.atom: each for each in ranked if each.field == "steps.goal_atoms" and not each.step}
        named = list(findings)
        for i, each in enumerate(ranked[: len(named)]):
            other = begun.get(str(each.actual)) if begun.get(each.atom) is each else None
            if other is not None:
                exchanged = ", in exchange" if other.actual == each.atom else ""
                words = f"it holds the derivation of {other.atom}, of rank {other.rank}{exchanged}"
                named[i] = Finding(DifferenceClass.FOREIGN, words, 1.0, "another candidate's derivation")
        return ranked, tuple(named)

    def describe(self, found: Sequence[Divergence]) -> Iterator[str]:
        """Yield a note for each rank with divergences, which names the earliest in the order of its own trace."""
        role, members = ROLES[self._side], self._members[self._side]
        for rank in sorted({each.rank for each in found} - {-1})[:MOST_RANKS]:
            own = [each for each in found if each.rank == rank]
            first = min(own, key=lambda each: (self._row_of(each), each.step))
            where = f"{first.stage} at step {first.step}" if first.step >= 0 else first.stage
            names = " and ".join(str(each) for each in members if each.part.rank == rank) or f"rank {rank}"
            yield f"{role} {names}: {count_of(len(own), 'divergence')}; the earliest in its order: {where} of {first.atom}"

    def _tell_doubled(self, found: Divergence, side: int, number: int) -> Divergence:
        rows = self._rows(side, number)
        first, *others = (self._sources[side].read_rows(row) for row in rows.reshape(-1, 1))
        tolerance, schema = self._pair.score_tolerance, self._pair.schema
        is_same = all(has_equal_columns(first, each, frozenset(), tolerance, schema)[0] for each in others)
        words = f"computed {len(rows)} times on the {ROLES[side]} side, by {self._name_ranks(side, number)}; the copies"
        words += " agree" if is_same else " differ"
        return _tell(found, DifferenceClass.DOUBLED, words, self._rank_of(found))

    def _diverge(self, number: int, expected: str, actual: str) -> Divergence:
        named: dict[str, Any] = self._name(number) | {"expected": expected, "actual": actual, "field": "part.rank"}
        row = int(self._rows(0, number)[0])
        return Divergence(candidate=row, step=-1, stage=Stage.SHARD.value, level=Level.ORDER, **named)

    def _name(self, number: int) -> dict[str, Any]:
        query, side, *atom = (int(column[self._rows(0, number)[0]]) for column in self._tables[0])
        return name_candidate(self._pair.schema, self._pair.names, (query, side, atom))

    def _name_ranks(self, side: int, number: int) -> str:
        return " and ".join(f"rank {rank}" for rank in self._ranks[side][self._rows(side, number)])

    def _rows(self, side: int, number: int) -> NDArray[np.int64]:
        """Return the rows of all copies of a candidate."""
        low, high = np.searchsorted(self._ids[side], [number, number + 1], sorter=self._order[side])
        return self._order[side][low:high]

    def _row_of(self, found: Divergence) -> int:
        """Return the row of a divergence in the traces with ranks; the number of their rows if they lack it."""
        side = int(found.expected == NO_CANDIDATE)
        rows = self._rows(self._side, int(self._ids[side][found.candidate]))
        return found.candidate if side == self._side else int([*rows, len(self._ids[self._side])][0])

    def _rank_of(self, found: Divergence) -> int:
        return int([*self._ranks[self._side][self._row_of(found) :][:1], -1][0])

    def _find_owners(self) -> tuple[NDArray[np.int64], str]:
        """Return the rank to which each candidate belongs, -1 if it is unknown, and the rule in words.

        A rule divides the queries or, in the order of a side without ranks, the candidates: what fits more of them counts.
        If both sides have ranks, most candidates must be on the right one.
        """
        ids, own, other = self._ids[self._side], self._ranks[self._side], 1 - self._side
        part, others = self._members[self._side][0].part, self._members[other]
        places = np.full(len(self._query), -1)
        places[self._ids[other][::-1]] = np.arange(len(self._ids[other]))[::-1]
        numbers = {"queries": self._query} | ({} if others else {"candidates": places})
        guesses = [
            (np.where(each < 0, -1, owners), f"by {part.assign} of {what}")
            for what, each in numbers.items()
            for owners in _divide(part, each)
        ]
        guesses.sort(key=lambda guess: int((guess[0][ids] != own).sum()))
        if others and others[0].part.world == part.world:
            owners = np.append(self._ranks[other], -1)[places]
            guesses = [*guesses[:1], (owners, f"as on the {ROLES[other]} side")]
        is_likely = (guess for guess in guesses if not others or 2 * int((guess[0][ids] == own).sum()) > len(own))
        return next(is_likely, (np.full(len(self._query), -1), ""))


def _divide(part: Part, numbers: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Yield the ranks to which queries or candidates with these numbers belong, for each reading of the rule."""
    if part.assign == "modulo":
        yield numbers % part.world
    elif part.assign == "blocks":
        base, more = divmod(int(numbers.max(initial=-1)) + 1, part.world)
        few, many = max(1, base), base + 1
        yield np.where(numbers < more * many, numbers // many, (numbers - more) // few)
        yield numbers // (many if more else few)
        yield np.minimum(numbers // few, part.world - 1)


def _tell(found: Divergence, kind: DifferenceClass, words: str, rank: int) -> Divergence:
    return msgspec.structs.replace(found, stage=Stage.SHARD.value, kind=kind, evidence=words, confidence=1.0, rank=rank)
