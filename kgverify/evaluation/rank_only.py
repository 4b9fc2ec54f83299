"""Ranks without proving candidates that cannot affect them: those outside of the program's least model.

If the true triple of a query and side is PROVED with a score above -100, a candidate outside of the least model ranks below it,
whatever its derivation: it cannot be PROVED, and a candidate that is not PROVED scores its log-probability less 100. All other
candidates are proved, so the ranks are those of a full evaluation. A true triple that is not PROVED is ranked by its
log-probability among those of all of its corruptions. Nothing but a derivation bounds a log-probability, so all are proved.

Among all corruptions (`AllCorruptions`), a derivation outside of the model is stopped once it cannot affect a rank. Each step
adds the logarithm of a probability, so a log-probability only falls. Below the *floor*, which is the true triple's score plus
100, less the tolerance of ties and `MARGIN`, the candidate stays below the true triple, without a tie, wherever it ends.

- The floor holds for true triples of any outcome. One that is PROVED at -100 or below competes with what is not PROVED.
- A candidate inside of the model has no floor: it may be PROVED, and then it scores 100 more.
- Queries that share their corruptions share the lowest floor. Each is ranked among all of them.
- Known triples are no corruptions. Where they are true triples themselves, they have no floor.
- Scores are compared as the engine rounds them, as in a full evaluation; that depends on no batch. Only the fall of the sum is
  subject to rounding, by far less than `MARGIN`.

This requires a sound engine. An engine that proves what does not follow gets other ranks than in a full evaluation. Therefore a
few of the candidates that could be left out or stopped are proved, for the check of a sample by the reference.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.engines.endings import STOPPED
from kgverify.engines.protocol import Progress, no_progress
from kgverify.errors import InternalError, UserError
from kgverify.evaluation.part_file import (
    ChoiceStatistics,
    PartResult,
    Sample,
    draw_sample,
    entities_of,
    hash_entities,
    join_samples,
)
from kgverify.evaluation.proving import prove_candidates, refuse_scores
from kgverify.program.outcomes import NOT_PROVED_PENALTY, Outcome, Side
from kgverify.ranking.corrupt import (
    ALL,
    BOTH_SIDES,
    draw_candidates,
    draw_eligible,
    may_be_drawn,
    mix,
    number_atoms,
    put_entities,
)
from kgverify.ranking.draw import count_eligible
from kgverify.ranking.groups import divide, take_candidates
from kgverify.ranking.rank import RANK_TOLERANCE, compare_gaps, rank_candidates, ranking_scores
from kgverify.runs.parts import Part
from kgverify.runs.run import Pipeline, Run
from kgverify.trace.model.columns import Candidates, CandidateSet, Rankings, expand_rows, starts_of

if TYPE_CHECKING:
    from kgverify.engines.compiled.program.least_model import LeastModel

MARGIN: Final = 1e-3
"""The least distance, in nats, of a true triple's score from -100 and a tie, so that rounding cannot affect a rank."""

NUM_OUTSIDE: Final = 256
"""The most candidates of a part that could be left out and are proved for the check."""

_OUTSIDE_RATIO: Final = 16
"""The number of candidates of a part for each of these."""

BLOCK_SIZE: Final = 1 << 20
"""The corruptions proved and compared at once; a query and side with more corruptions is a block by itself."""

_SALT: Final = 0x6F75747369646521


class Block(NamedTuple):
    """Corruptions of k kinds, one kind after the other, shared by g queries and sides.

    groups: int64 [g]  indices of queries and sides; kind: int64 [g]  the kind whose corruptions each has
    num:    int64 [k]  the corruptions of each kind
    floor:  float64    the log-probability of each candidate below which it affects no rank; None if they are unknown
    """

    groups: NDArray[np.int64]
    kind: NDArray[np.int64]
    num: NDArray[np.int64]
    candidates: CandidateSet
    floor: NDArray[np.float64] | None = None


class Drawn(NamedTuple):
    """The queries and sides G of a part, and the candidates M to prove first.

    query:           int32 [G], side: int64 [G]
    num_corruptions: int64 [G]
    owner:           int64 [M]  the query and side of each candidate; is_true: bool [M]  whether it is the true triple
    atom:            int32 [M, 3]
    distinct:        int64 [D]  one row of M for each candidate to prove; position: int64 [M]  its index there
    draw_rest:       the other corruptions of some queries and sides, int64 [g] ascending, given the scores of their true
                     triples, float64 [g]
    entities:        uint64 [G]  the hash of all corruptions, 0 if they are not listed
    rest_has_all:    whether `draw_rest` repeats the corruptions among M
    """

    query: NDArray[np.int32]
    side: NDArray[np.int64]
    num_corruptions: NDArray[np.int64]
    entities: NDArray[np.uint64]
    owner: NDArray[np.int64]
    is_true: NDArray[np.bool_]
    atom: NDArray[np.int32]
    distinct: NDArray[np.int64]
    position: NDArray[np.int64]
    draw_rest: Callable[[NDArray[np.int64], NDArray[np.float64]], Iterator[Block]]
    rest_has_all: bool

    @property
    def first(self) -> CandidateSet:
        """The candidates to prove first."""
        return CandidateSet(self.query[self.owner], self.side[self.owner].astype(np.int8), self.atom)


class DrawnCorruptions:
    """The corruptions drawn by the run's seed."""

    def __init__(self, run: Run, model: "LeastModel") -> None:
        self._run, self.model = run, model

    def draw(self, part: Part) -> Drawn:
        """Return what is to be proved first; if the true triple does not follow, that is every candidate."""
        run = self._run
        candidates = draw_candidates(run.graph, run.split, part.queries, run.num_corruptions, run.seed)
        groups = divide(candidates, run.triples)
        owner = groups.repeat(np.arange(len(groups.query)))
        is_true = np.zeros(len(owner), np.bool_)
        is_true[groups.true] = True
        follows = self.model.contains(candidates.atom)
        is_first = is_true | follows | ~follows[groups.true][owner]
        outside = np.flatnonzero(~is_first)
        num_outside = choose_num_outside(part.num_candidates)
        is_first[outside[:: max(1, len(outside) // num_outside)][:num_outside]] = True
        rows = np.arange(np.count_nonzero(is_first))
        return Drawn(
            groups.query,
            groups.side.astype(np.int64),
            groups.counts - 1,
            hash_entities(candidates, groups),
            owner[is_first],
            is_true[is_first],
            candidates.atom[is_first],
            distinct=rows,
            position=rows,
            draw_rest=partial(_select_rest, candidates, owner, is_first),
            rest_has_all=False,
        )


def _select_rest(
    candidates: CandidateSet,
    owner: NDArray[np.int64],
    is_first: NDArray[np.bool_],
    groups: NDArray[np.int64],
    true_score: NDArray[np.float64],
) -> Iterator[Block]:
    rows = np.flatnonzero(~is_first & np.isin(owner, groups))
    if len(rows):
        kind = np.arange(len(groups))
        num = np.bincount(np.searchsorted(groups, owner[rows]), minlength=len(groups))
        yield Block(groups, kind, num, candidates.take(rows))


class _Asked(NamedTuple):
    """The queries and sides G of a part, and their corruptions that follow.

    query: int32 [G], side: int64 [G], triple: int32 [G, 3], num_eligible: int64 [G]
    owner: int64 [m]  the query and side of each corruption that follows; entity: int32 [m]  the one that it has instead
    num_outside:      the number of corruptions to prove although they could be stopped
    """

    query: NDArray[np.int32]
    side: NDArray[np.int64]
    triple: NDArray[np.int32]
    num_eligible: NDArray[np.int64]
    owner: NDArray[np.int64]
    entity: NDArray[np.int32]
    num_outside: int


class AllCorruptions:
    """All corruptions of every query and side, which are not drawn before they are needed.

    The least model gives the corruptions inside of it as ranges of its keys. Queries that ask for the same argument of the same
    predicate and entity have the same corruptions, which are proved once.
    """

    def __init__(self, run: Run, model: "LeastModel", block_size: int) -> None:
        self._run, self.model, self._block_size = run, model, block_size
        self._num_constants = len(run.graph.program.symbols.constants)

    def draw(self, part: Part) -> Drawn:
        """Return the true triples, the corruptions inside of the model and a few others, equal atoms once."""
        run = self._run
        query = np.repeat(np.array(part.queries, np.int32), len(BOTH_SIDES))
        side = np.tile(np.array(BOTH_SIDES, np.int64), len(part.queries))
        triple = run.triples[query]
        owners, atoms = [np.arange(len(query))], [triple]
        num_outside = choose_num_outside(part.num_candidates)
        for each in BOTH_SIDES:
            rows = np.flatnonzero(side == each)
            num, entities = self.model.select_entities(triple[rows], each)
            owners.append(np.repeat(rows, num))
            atoms.append(put_entities(triple[owners[-1]], side[owners[-1]], entities))
        outside = self._draw_outside(query, side, triple, num_outside)
        owner = np.concatenate((*owners, outside[0]))
        atom = np.concatenate((*atoms, outside[1]))
        is_true = np.arange(len(owner)) < len(query)
        is_inside = ~is_true
        is_inside[len(owner) - len(outside[0]) :] = False
        is_kept = is_true | may_be_drawn(run.graph, atom, side[owner])
        owner, atom, is_true, is_inside = owner[is_kept], atom[is_kept], is_true[is_kept], is_inside[is_kept]
        entity = np.where(side[owner] == Side.HEAD, atom[:, 1], atom[:, 2])
        distinct, position = np.unique(number_atoms(atom, self._num_constants), return_index=True, return_inverse=True)[
            1:
        ]
        num_eligible = count_eligible(run.graph, triple, side)
        asked = _Asked(query, side, triple, num_eligible, owner[is_inside], entity[is_inside], num_outside)
        return Drawn(
            query,
            side,
            num_eligible,
            np.zeros(len(query), np.uint64),
            owner,
            is_true,
            atom,
            distinct,
            position.reshape(-1),
            draw_rest=partial(self._draw_rest, asked),
            rest_has_all=True,
        )

    def _draw_outside(
        self, query: NDArray[np.int32], side: NDArray[np.int64], triple: NDArray[np.int32], num: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Draw corruptions that do not follow, by the seed: int64 [n] the query and side of each, int32 [n, 3]."""
        group: NDArray[np.uint64] = (query.astype(np.int64) * 4 + side).astype(np.uint64)
        key = mix(mix(np.array([self._run.seed ^ _SALT], np.uint64)) ^ group)
        order = np.argsort(key, kind="stable")
        draws = np.arange(num)
        owner = order[draws % len(order)]
        entities = mix(key[owner] ^ draws.astype(np.uint64)) % np.uint64(self._num_constants)
        atom = put_entities(triple[owner], side[owner], entities.astype(np.int32))
        rows = np.unique(np.stack((owner, number_atoms(atom, self._num_constants))), axis=1, return_index=True)[1]
        rows = rows[~self.model.contains(atom[rows])]
        return owner[rows], atom[rows]

    def _draw_rest(self, asked: _Asked, groups: NDArray[np.int64], true_score: NDArray[np.float64]) -> Iterator[Block]:
        """Yield every corruption of the queries and sides in blocks, those of a kind once."""
        query, side, triple = asked.query, asked.side, asked.triple
        kept = np.where(side[groups] == Side.HEAD, triple[groups, 2], triple[groups, 1])
        kinds = np.stack((triple[groups, 0], side[groups], kept))
        first, kind = np.unique(kinds, axis=1, return_index=True, return_inverse=True)[1:]
        kind = kind.reshape(-1)
        leader = groups[first]
        floor = np.full(len(leader), np.inf)
        np.minimum.at(floor, kind, true_score + (NOT_PROVED_PENALTY - RANK_TOLERANCE - MARGIN))
        # The queries and sides of each kind, one kind after the other.
        order = np.argsort(kind, kind="stable")
        groups, kind = groups[order], kind[order]
        ends = np.cumsum(asked.num_eligible[leader])
        few = self._block_size // (8 if int(ends[-1:].sum()) > 2 * self._block_size else 1)
        stride = max(1, -(-int(ends[-1:].sum()) // asked.num_outside))
        begin = 0
        while begin < len(ends):
            before = ends[begin - 1] if begin else 0
            # The engine waits for the first block, and the end for the comparison of the last: both are small.
            size = few if not begin else min(self._block_size, max(few, int(ends[-1]) - before - few))
            end = max(begin + 1, int(np.searchsorted(ends, before + size, "right")))
            of = leader[begin:end]
            num, atom = draw_eligible(self._run.graph, triple[of], side[of])
            here = slice(*np.searchsorted(kind, (begin, end)))
            candidates = CandidateSet(np.repeat(query[of], num), np.repeat(side[of].astype(np.int8), num), atom)
            floors = np.repeat(floor[begin:end], num)
            floors[self._find_inside(asked, of, num, candidates)] = -np.inf
            # Some that could be stopped are proved all the same.
            floors[-before % stride :: stride] = -np.inf
            yield Block(groups[here], kind[here] - begin, num, candidates, floors)
            begin = end

    def _find_inside(
        self, asked: _Asked, leader: NDArray[np.int64], num: NDArray[np.int64], candidates: CandidateSet
    ) -> NDArray[np.int64]:
        """Return the candidates inside of the model, among `num` for each leader of a kind, by entity."""
        kind = np.full(len(asked.query), -1)
        kind[leader] = np.arange(len(leader))
        rows = np.flatnonzero(kind[asked.owner] >= 0)
        inside = kind[asked.owner[rows]] * self._num_constants + asked.entity[rows]
        every = np.repeat(np.arange(len(leader)) * self._num_constants, num) + entities_of(candidates)
        return np.searchsorted(every, inside)


class Tally(NamedTuple):
    """Counts for the queries and sides G: the corruptions above and tied, and the endings of the proved candidates.

    above, tied, num_limited: int64 [G]; num_outcomes: int64 [G, 4]
    """

    above: NDArray[np.int64]
    tied: NDArray[np.int64]
    num_limited: NDArray[np.int64]
    num_outcomes: NDArray[np.int64]


class Ranked(NamedTuple):
    """A part's rankings before they are summarized."""

    drawn: Drawn
    true: Candidates
    tally: Tally
    sample: Sample
    choices: ChoiceStatistics


class RankOnly:
    """The work that proves the candidates of a part in two steps, and compares them with the true triples beside the engine.

    First come the true triples and the corruptions that could be PROVED. Then come all corruptions of the queries and sides
    whose true triple does not rank above everything that is not PROVED.
    """

    def __init__(
        self, run: Run, pipeline: Pipeline, source: DrawnCorruptions | AllCorruptions, block_size: int
    ) -> None:
        self._run, self._engine, self._source, self._block_size = run, pipeline.engine, source, block_size
        self.model = source.model

    def draw(self, part: Part) -> Drawn:
        """Draw the candidates of the first step."""
        return self._source.draw(part)

    def prove(self, part: Part, drawn: Drawn, progress: Progress) -> Ranked:
        """Prove what can affect a rank."""
        first, is_true = drawn.first, drawn.is_true
        # What the second step repeats is counted there.
        counted = no_progress if drawn.rest_has_all else progress
        distinct, choices = self._prove(part, first.take(drawn.distinct), counted)
        found = take_candidates(distinct, drawn.position)._replace(query=first.query, side=first.side)
        true = take_candidates(found, is_true)
        needs_all = ~ranks_above_unproved(true.outcome, true.log_probability)
        is_counted = is_true | ~(needs_all[drawn.owner] & drawn.rest_has_all)
        found, is_true, owner = take_candidates(found, is_counted), is_true[is_counted], drawn.owner[is_counted]
        true_score = ranking_scores(true)
        tally = _tally(found, owner, is_true, true_score)
        samples = [draw_sample(found, is_true, self._run.seed)]
        num_reported = 0 if drawn.rest_has_all else len(drawn.distinct)
        compared: list[Future[Sample]] = []
        with ThreadPoolExecutor(1) as beside:
            blocks = drawn.draw_rest(np.flatnonzero(needs_all), true_score[needs_all])
            upcoming = beside.submit(next, blocks, None)
            while (block := upcoming.result()) is not None:
                upcoming = beside.submit(next, blocks, None)
                proved, of_block = self._prove(part, block.candidates, progress, block.floor)
                choices = choices.combine(of_block)
                num_reported += len(proved.query)
                compared.append(beside.submit(self._compare, block, proved, true_score, tally))
        progress(part.num_candidates - num_reported)
        samples += [each.result() for each in compared]
        return Ranked(drawn, true, tally, join_samples(samples), choices)

    def summarize(self, part: Part, proved: Ranked) -> PartResult:
        """Return the ranks among all candidates, and the counts of those that were proved."""
        drawn, true, tally = proved.drawn, proved.true, proved.tally
        rankings = Rankings(
            drawn.query,
            drawn.side.astype(np.int8),
            (drawn.num_corruptions + 1).astype(np.uint32),
            1.0 + tally.above.astype(np.float64),
            1.0 + (tally.above + tally.tied).astype(np.float64),
        )
        return PartResult.build(
            rankings, true, tally.num_outcomes, tally.num_limited, drawn.entities, proved.sample, proved.choices
        )

    def _prove(
        self, part: Part, candidates: CandidateSet, progress: Progress, floor: NDArray[np.float64] | None = None
    ) -> tuple[Candidates, ChoiceStatistics]:
        proved, choices = prove_candidates(self._engine, candidates, progress, floor)
        if not np.isfinite(proved.log_probability).all():
            raise refuse_scores(part)
        return proved, choices

    def _compare(self, block: Block, proved: Candidates, true_score: NDArray[np.float64], tally: Tally) -> Sample:
        """Add the corruptions of a block to the tally, and return a sample of them. Those that were stopped rank below.

        InternalError for one that was stopped too early.
        """
        groups, kind = block.groups, block.kind
        is_stopped = proved.outcome == STOPPED
        if block.floor is not None and (is_stopped & (proved.log_probability >= block.floor)).any():
            raise InternalError("the engine stopped a derivation that is not below its floor")
        starts, score = starts_of(block.num), ranking_scores(proved)
        outcomes, limited = _count_endings(np.repeat(np.arange(len(block.num)), block.num), proved, len(block.num))
        tally.num_outcomes[groups] += outcomes[kind]
        tally.num_limited[groups] += limited[kind]
        ends = np.cumsum(block.num[kind])
        begin = 0
        while begin < len(groups):
            before = ends[begin - 1] if begin else 0
            end = max(begin + 1, int(np.searchsorted(ends, before + 2 * self._block_size, "right")))
            of, here = kind[begin:end], groups[begin:end]
            bounds = starts_of(block.num[of])
            gaps = score[expand_rows(starts, of)] - np.repeat(true_score[here], block.num[of])
            for counts, mask in zip((tally.above, tally.tied), compare_gaps(gaps, RANK_TOLERANCE), strict=True):
                counts[here] += np.diff(np.searchsorted(np.flatnonzero(mask), bounds))
            begin = end
        return draw_sample(proved, np.zeros(len(score), np.bool_), self._run.seed)


def build_rank_only(run: Run, pipeline: Pipeline, block_size: int = BLOCK_SIZE) -> RankOnly:
    """Build the rank-only work of a run. UserError for a pipeline with its own draw or ranks, or a model that is too large."""
    if pipeline.draw is not draw_candidates or pipeline.rank is not rank_candidates:
        raise UserError(
            "draws and ranks by itself, but the draw or the ranks to be evaluated are others",
            where="--rank-only",
            fix="leave --rank-only out, and all candidates are proved",
        )
    model = build_model(run, pipeline.engine.info.device)
    is_all = run.num_corruptions == ALL
    source = AllCorruptions(run, model, block_size) if is_all else DrawnCorruptions(run, model)
    return RankOnly(run, pipeline, source, block_size)


def build_model(run: Run, device: str) -> "LeastModel":
    """Build the least model of a run's program. UserError if it is too large."""
    from kgverify.engines.compiled.program.least_model import LeastModel

    try:
        return LeastModel(run.graph.program, device=device)
    except UserError as error:
        raise UserError(
            error.message, where="--rank-only", fix="leave --rank-only out, and all candidates are proved"
        ) from None


def choose_num_outside(num_candidates: int) -> int:
    """Return the number of a part's candidates that are proved although they could be left out."""
    return min(NUM_OUTSIDE, -(-num_candidates // _OUTSIDE_RATIO))


def ranks_above_unproved(
    outcome: NDArray[np.int8], log_probability: NDArray[np.float64], tolerance: float = RANK_TOLERANCE
) -> NDArray[np.bool_]:
    """Return whether true triples with these endings rank above everything that is not PROVED: bool [n]."""
    is_above: NDArray[np.bool_] = (outcome == Outcome.PROVED) & (
        log_probability > MARGIN + tolerance - NOT_PROVED_PENALTY
    )
    return is_above


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
    """Count the candidates of each owner by outcome, int64 [num, 4], and those that were limited, int64 [num].

    Those that were stopped are not counted.
    """
    width = 1 + STOPPED
    ended = np.bincount(owner * width + candidates.outcome, minlength=num * width).reshape(num, width)
    is_limited = (candidates.is_limited != 0) & (candidates.outcome != STOPPED)
    return ended[:, : len(Outcome)], np.bincount(owner[is_limited], minlength=num)
