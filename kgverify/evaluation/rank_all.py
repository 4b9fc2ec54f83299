"""Ranks of parts among all corruptions, without making, let alone proving, those that cannot matter.

First come the true triples and, of each query and side, the corruptions inside of the least model: ranges of its keys. Then,
for the queries and sides whose true triple does not stand above all that is not PROVED, every corruption. Queries that ask for
the same argument of the same predicate and entity have the same corruptions, which are proved once.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.engines.protocol import Progress, no_progress
from kgverify.evaluation.part_file import PartResult, Sample, draw_sample, join_samples
from kgverify.evaluation.parts import Part
from kgverify.evaluation.proving import Gaps, prove_candidates, refuse_scores
from kgverify.evaluation.rank_only import choose_num_outside, stands_above
from kgverify.program.outcomes import Outcome, Side
from kgverify.ranking.corrupt import BOTH_SIDES, draw_eligible, may_be_drawn, mix, put_entities
from kgverify.ranking.draw import count_eligible
from kgverify.ranking.groups import take_candidates
from kgverify.ranking.rank import RANK_TOLERANCE, compare_gaps, ranking_scores
from kgverify.runs.run import Pipeline, Run
from kgverify.trace.model.columns import Candidates, CandidateSet, Rankings, expand_rows, starts_of

if TYPE_CHECKING:
    from kgverify.engines.compiled.program.least_model import LeastModel

BLOCK: Final = 1 << 20
"""Corruptions that are proved and compared at once, but for those of one query and side, which may be more."""

_SALT: Final = 0x6F75747369646521


class Asked(NamedTuple):
    """The queries and sides G of a part, and of the candidates M that are proved first which belong to them.

    query:        int32 [G], side: int64 [G], triple: int32 [G, 3]
    num_eligible: int64 [G]  corruptions
    owner:        int64 [M]  of which query and side; the first G are the true triples
    atom:         int32 [M, 3]
    distinct:     int64 [D]  rows of M, one for each atom; each of the M is distinct[place], int64 [M]
    """

    query: NDArray[np.int32]
    side: NDArray[np.int64]
    triple: NDArray[np.int32]
    num_eligible: NDArray[np.int64]
    owner: NDArray[np.int64]
    atom: NDArray[np.int32]
    distinct: NDArray[np.int64]
    place: NDArray[np.int64]

    def candidates(self, owner: NDArray[np.int64], atom: NDArray[np.int32]) -> CandidateSet:
        """Atoms as candidates of queries and sides."""
        return CandidateSet(self.query[owner], self.side[owner].astype(np.int8), atom)


class Tally(NamedTuple):
    """Of the queries and sides G: how many corruptions stand above and how many tie, how all ended that were proved.

    above, tied, num_limited: int64 [G]; num_outcomes: int64 [G, 4]
    """

    above: NDArray[np.int64]
    tied: NDArray[np.int64]
    num_limited: NDArray[np.int64]
    num_outcomes: NDArray[np.int64]


class Ranked(NamedTuple):
    """What came of a part."""

    asked: Asked
    true: Candidates
    tally: Tally
    sample: Sample
    gaps: Gaps


class RankAll:
    """Each part in two steps, and the second one in blocks: drawn and compared beside the engine."""

    def __init__(self, run: Run, pipeline: Pipeline, model: "LeastModel") -> None:
        self._run, self._engine, self._model = run, pipeline.engine, model
        self._size = len(run.graph.program.symbols.constants)

    def draw(self, part: Part) -> Asked:
        """What is proved first: what could be PROVED, and a few others."""
        run = self._run
        query = np.repeat(np.array(part.queries, np.int32), len(BOTH_SIDES))
        side = np.tile(np.array(BOTH_SIDES, np.int64), len(part.queries))
        triple = run.triples[query]
        owners, atoms = [np.arange(len(query))], [triple]
        for each in BOTH_SIDES:
            rows = np.flatnonzero(side == each)
            num, entities = self._model.select_entities(triple[rows], each)
            owners.append(np.repeat(rows, num))
            atoms.append(put_entities(triple[owners[-1]], side[owners[-1]], entities))
        outside = self._draw_outside(query, side, triple, choose_num_outside(part.num_candidates))
        owner = np.concatenate((*owners, outside[0]))
        atom = np.concatenate((*atoms, outside[1]))
        is_asked = may_be_drawn(run.graph, atom, side[owner])
        is_asked[: len(query)] = True
        owner, atom = owner[is_asked], atom[is_asked]
        distinct, place = np.unique(self._number(atom), return_index=True, return_inverse=True)[1:]
        num_eligible = count_eligible(run.graph, triple, side)
        return Asked(query, side, triple, num_eligible, owner, atom, distinct, place.reshape(-1))

    def prove(self, part: Part, drawn: Asked, progress: Progress) -> Ranked:
        """First what could be PROVED; then, where it is asked for, all the rest."""
        first = drawn.candidates(drawn.owner, drawn.atom)
        distinct, gaps = self._prove(part, first.take(drawn.distinct), no_progress)
        found = take_candidates(distinct, drawn.place)._replace(query=first.query, side=first.side)
        num_groups = len(drawn.query)
        true = take_candidates(found, slice(num_groups))
        needs_all = ~stands_above(true.outcome, true.log_probability)
        is_true = np.arange(len(drawn.owner)) < num_groups
        is_counted = is_true | ~needs_all[drawn.owner]
        counted = take_candidates(found, is_counted)
        tally = _tally(counted, drawn.owner[is_counted], is_true[is_counted], ranking_scores(true))
        sample = draw_sample(counted, is_true[is_counted], self._run.seed)
        rest = _Rest(self._run, drawn, ranking_scores(true), np.flatnonzero(needs_all), tally)
        samples, of_rest = self._prove_rest(part, rest, progress)
        return Ranked(drawn, true, tally, join_samples([sample, *samples]), gaps.join(of_rest))

    def _prove_rest(self, part: Part, rest: "_Rest", progress: Progress) -> tuple[list[Sample], Gaps]:
        """Block by block; those left out are told as done at the end."""
        gaps, num_told = Gaps(), 0
        compared: list[Future[Sample]] = []
        with ThreadPoolExecutor(1) as beside:
            blocks = rest.blocks()
            upcoming = beside.submit(next, blocks, None)
            while (block := upcoming.result()) is not None:
                upcoming = beside.submit(next, blocks, None)
                proved, of_block = self._prove(part, block.candidates, progress)
                gaps = gaps.join(of_block)
                num_told += len(proved.query)
                compared.append(beside.submit(rest.compare, block, proved))
        progress(part.num_candidates - num_told)
        return [each.result() for each in compared], gaps

    def summarize(self, part: Part, proved: Ranked) -> PartResult:
        """The ranks are among all candidates; the rest is of those that were proved."""
        asked, true, tally = proved.asked, proved.true, proved.tally
        rankings = Rankings(
            asked.query,
            asked.side.astype(np.int8),
            (asked.num_eligible + 1).astype(np.uint32),
            1.0 + tally.above.astype(np.float64),
            1.0 + (tally.above + tally.tied).astype(np.float64),
        )
        return PartResult(
            *rankings,
            outcome=true.outcome,
            log_probability=true.log_probability,
            num_outcomes=tally.num_outcomes.astype(np.uint32),
            num_limited=tally.num_limited.astype(np.uint32),
            **proved.sample._asdict(),
            num_choices=np.array(proved.gaps.num_choices, np.int64),
            num_rescored=np.array(proved.gaps.num_rescored, np.int64),
            smallest_gap=np.array(proved.gaps.smallest, np.float64),
        )

    def _prove(self, part: Part, candidates: CandidateSet, progress: Progress) -> tuple[Candidates, Gaps]:
        proved, gaps = prove_candidates(self._engine, candidates, progress)
        if not np.isfinite(proved.log_probability).all():
            raise refuse_scores(part)
        return proved, gaps

    def _draw_outside(
        self, query: NDArray[np.int32], side: NDArray[np.int64], triple: NDArray[np.int32], num: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Some that do not follow, by the seed: int64 [n] the query and side of each, int32 [n, 3]."""
        group: NDArray[np.uint64] = (query.astype(np.int64) * 4 + side).astype(np.uint64)
        key = mix(mix(np.array([self._run.seed ^ _SALT], np.uint64)) ^ group)
        order = np.argsort(key, kind="stable")
        turn = np.arange(num)
        owner = order[turn % len(order)]
        entities = mix(key[owner] ^ turn.astype(np.uint64)) % np.uint64(self._size)
        atom = put_entities(triple[owner], side[owner], entities.astype(np.int32))
        rows = np.unique(np.stack((owner, self._number(atom))), axis=1, return_index=True)[1]
        rows = rows[~self._model.contains(atom[rows])]
        return owner[rows], atom[rows]

    def _number(self, atom: NDArray[np.int32]) -> NDArray[np.int64]:
        wide = atom.astype(np.int64)
        numbers: NDArray[np.int64] = (wide[:, 0] * self._size + wide[:, 1]) * self._size + wide[:, 2]
        return numbers


class _Block(NamedTuple):
    """The corruptions of some of the kinds, one kind after the other: num, int64 [k], of each of `kinds`."""

    kinds: range
    num: NDArray[np.int64]
    candidates: CandidateSet


class _Rest:
    """The queries and sides that need all of their corruptions, by kind: those of a kind have the same corruptions."""

    def __init__(
        self, run: Run, asked: Asked, true_score: NDArray[np.float64], groups: NDArray[np.int64], tally: Tally
    ) -> None:
        self._run, self._asked, self._true_score, self._tally = run, asked, true_score, tally
        triple, side = asked.triple[groups].astype(np.int64), asked.side[groups]
        kept = np.where(side == Side.HEAD, triple[:, 2], triple[:, 1])
        kind = np.stack((triple[:, 0], side, kept))
        first, of = np.unique(kind, axis=1, return_index=True, return_inverse=True)[1:]
        of = of.reshape(-1)
        self._leader = groups[first]
        # The queries and sides of each kind, one kind after the other.
        self._groups = groups[np.argsort(of, kind="stable")]
        self._starts = starts_of(np.bincount(of, minlength=len(first)))

    def blocks(self) -> Iterator[_Block]:
        """Every corruption of each kind, once."""
        asked = self._asked
        ends = np.cumsum(asked.num_eligible[self._leader])
        begin = 0
        while begin < len(ends):
            before = ends[begin - 1] if begin else 0
            end = max(begin + 1, int(np.searchsorted(ends, before + BLOCK, "right")))
            leader = self._leader[begin:end]
            num, atom = draw_eligible(self._run.graph, asked.triple[leader], asked.side[leader])
            yield _Block(range(begin, end), num, asked.candidates(np.repeat(leader, num), atom))
            begin = end

    def compare(self, block: _Block, proved: Candidates) -> Sample:
        """Add to the tally how the corruptions of a block stand to the true triples; some of them are kept."""
        kinds = np.arange(block.kinds.start, block.kinds.stop)
        groups = self._groups[expand_rows(self._starts, kinds)]
        kind = np.repeat(kinds, np.diff(self._starts)[kinds]) - block.kinds.start
        starts, score = starts_of(block.num), ranking_scores(proved)
        outcomes, limited = _count_endings(np.repeat(np.arange(len(kinds)), block.num), proved, len(kinds))
        self._tally.num_outcomes[groups] += outcomes[kind]
        self._tally.num_limited[groups] += limited[kind]
        ends = np.cumsum(block.num[kind])
        begin = 0
        while begin < len(groups):
            end = max(begin + 1, int(np.searchsorted(ends, (ends[begin - 1] if begin else 0) + 2 * BLOCK, "right")))
            of = kind[begin:end]
            bounds = starts_of(block.num[of])
            true_score = np.repeat(self._true_score[groups[begin:end]], block.num[of])
            is_above, is_tied = compare_gaps(score[expand_rows(starts, of)] - true_score, RANK_TOLERANCE)
            for counts, mask in ((self._tally.above, is_above), (self._tally.tied, is_tied)):
                counts[groups[begin:end]] = np.diff(np.searchsorted(np.flatnonzero(mask), bounds))
            begin = end
        return draw_sample(proved, np.zeros(len(score), np.bool_), self._run.seed)


def _tally(
    candidates: Candidates, owner: NDArray[np.int64], is_true: NDArray[np.bool_], true_score: NDArray[np.float64]
) -> Tally:
    num = len(true_score)
    masks = compare_gaps(ranking_scores(candidates) - true_score[owner], RANK_TOLERANCE)
    above, tied = (np.bincount(owner[mask & ~is_true], minlength=num) for mask in masks)
    num_outcomes, num_limited = _count_endings(owner, candidates, num)
    return Tally(above, tied, num_limited, num_outcomes)


def _count_endings(
    owner: NDArray[np.int64], candidates: Candidates, num: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """int64 [num, 4] and [num]: how the candidates of each owner ended, and how many were limited."""
    ended = np.bincount(owner * len(Outcome) + candidates.outcome, minlength=num * len(Outcome))
    limited = np.bincount(owner[candidates.is_limited != 0], minlength=num)
    return ended.reshape(num, len(Outcome)), limited
