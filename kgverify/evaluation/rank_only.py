"""Ranks without proving the candidates outside the program's least model that cannot affect them.

If the true triple of a query and side is PROVED with a score above -100, a candidate outside the least model ranks below it,
whatever its derivation: it cannot be PROVED, and a candidate that is not PROVED scores its log-probability minus 100. All
other candidates are proved, so the ranks equal those of a full evaluation. If the true triple is not PROVED, its
log-probability is ranked among those of all its corruptions. Only a derivation bounds a log-probability, so all these
corruptions are proved.

Among all corruptions (`AllCorruptions`), a derivation outside the model is stopped once it cannot affect a rank. Each step
adds the logarithm of a probability, so a log-probability can only fall. The *floor* is the true triple's score plus 100, minus
the tie tolerance and `MARGIN`. Below it, a candidate ranks below the true triple, without a tie, however it ends.

- The floor holds for true triples of any outcome. A true triple PROVED at -100 or below competes with candidates that are not
  PROVED.
- A candidate inside the model may be PROVED, and then scores 100 more. If it was stopped, it is proved again to its end.
- Queries that share their corruptions share the lowest floor. Each is ranked among all these corruptions.
- Known triples are not corruptions. As true triples they have no floor.
- Scores are compared as the engine rounds them, as in a full evaluation, independently of the batch. Rounding affects only the
  falling sum, by far less than `MARGIN`.

The least model is built while the engine works. The corruptions of true triples that are not PROVED come first, since they
need the model only if they were stopped. The model is given up if it takes more work than it can save (`choose_most_work`);
then every candidate is proved to its end. A result depends only on its part and the run, not on how long the model takes.

This requires a sound engine. An engine that proves what does not follow gets different ranks than in a full evaluation.
Therefore a few of the candidates that could be left out or stopped are proved, so that the reference can check a sample.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from threading import Event
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.engines.protocol import STOPPED, Engine, LeastModel
from kgverify.engines.table import COMPILED, make_entry
from kgverify.errors import InternalError, UserError
from kgverify.evaluation.parts import (
    ChoiceStatistics,
    PartResult,
    Sample,
    draw_sample,
    hash_entities,
    join_samples,
)
from kgverify.evaluation.proving import ProcessGroup, Share, cut_units, prove_candidates, refuse_scores
from kgverify.program.outcomes import NOT_PROVED_PENALTY, Outcome, Side
from kgverify.progress import Progress, no_progress
from kgverify.ranking.draw import (
    ALL,
    BOTH_SIDES,
    count_eligible,
    draw_candidates,
    draw_eligible,
    may_be_drawn,
    mix,
    number_atoms,
    put_entities,
)
from kgverify.ranking.rank import (
    RANK_TOLERANCE,
    Groups,
    compare_gaps,
    divide,
    rank_candidates,
    ranking_scores,
    take_candidates,
)
from kgverify.runs.run import Part, Pipeline, Run, choose_most_work
from kgverify.trace.model.columns import (
    Candidates,
    CandidateSet,
    Rankings,
    count_where,
    cut_rows,
    expand_rows,
    starts_of,
)

MARGIN: Final = 1e-3
"""The minimum distance, in nats, of a true triple's score from -100 and from a tie, so that rounding cannot affect a rank."""

NUM_OUTSIDE: Final = 256
"""The maximum number of candidates of a part that could be left out but are proved for the check."""

_OUTSIDE_RATIO: Final = 16
"""The number of a part's candidates for each candidate proved for the check."""

BLOCK_SIZE: Final = 1 << 20
"""The maximum number of corruptions proved and compared at once; a query and side with more is a block by itself."""

_SALT: Final = 0x6F75747369646521


class Block(NamedTuple):
    """Corruptions of k kinds, one kind after the other, shared by g queries and sides.

    groups: int64 [g]  indices of queries and sides; kind: int64 [g]  the kind of corruptions of each
    num:    int64 [k]  the number of corruptions of each kind
    floor:  float64    the log-probability below which each candidate affects no rank; None if each runs to its end
    """

    groups: NDArray[np.int64]
    kind: NDArray[np.int64]
    num: NDArray[np.int64]
    candidates: CandidateSet
    floor: NDArray[np.float64] | None = None

    def take(self, mask: NDArray[np.bool_]) -> "Block":
        """Return a block of some of the candidates, without floors."""
        num = count_where(mask, starts_of(self.num))
        return Block(self.groups, self.kind, num, self.candidates.take(np.flatnonzero(mask)))

    @classmethod
    def join(cls, blocks: "Sequence[Block]") -> "Block":
        """Join blocks without floors."""
        groups, kinds, num, candidates, _ = zip(*blocks, strict=True)
        first_kind = starts_of(np.array([len(each) for each in num]))[:-1]
        return cls(
            np.concatenate(groups),
            np.concatenate([kind + first for kind, first in zip(kinds, first_kind, strict=True)]),
            np.concatenate(num),
            CandidateSet(*map(np.concatenate, zip(*candidates, strict=True))),
        )


class Drawn(NamedTuple):
    """The queries and sides of a part, G in number.

    query:           int32 [G], side: int64 [G]
    num_corruptions: int64 [G]
    entities:        uint64 [G]  the hash of all corruptions, 0 if they are not listed
    true:            the D distinct true triples; position: int64 [G]  the index in `true` for each query and side
    listed:          all candidates of the part, if they are drawn, and their groups
    """

    part: Part
    query: NDArray[np.int32]
    side: NDArray[np.int64]
    num_corruptions: NDArray[np.int64]
    entities: NDArray[np.uint64]
    true: CandidateSet
    position: NDArray[np.int64]
    listed: tuple[CandidateSet, Groups] | None = None


class DrawnCorruptions:
    """The corruptions drawn with the run's seed."""

    def __init__(self, run: Run, model: Future[LeastModel | None]) -> None:
        self._run, self.model = run, model

    def draw(self, part: Part) -> Drawn:
        """Draw all candidates of the part."""
        run = self._run
        candidates = draw_candidates(run.graph, run.split, part.queries, run.num_corruptions, run.seed)
        groups = divide(candidates, run.triples)
        query, side, entities = groups.query, groups.side.astype(np.int64), hash_entities(candidates, groups)
        true, position = _find_distinct(run, query, side)
        return Drawn(part, query, side, groups.counts - 1, entities, true, position, (candidates, groups))

    def draw_blocks(
        self, drawn: Drawn, needs_all: NDArray[np.bool_], true_score: NDArray[np.float64], share: Share
    ) -> Iterator[Block]:
        """Yield the corruptions to prove. needs_all: bool [G]; true_score: float64 [G], of the true triples."""
        assert drawn.listed is not None
        candidates, groups = drawn.listed
        num_outside = choose_num_outside(drawn.part.num_candidates)
        is_corruption = np.ones(len(candidates.query), np.bool_)
        is_corruption[groups.true] = False
        is_needed = groups.repeat(needs_all)
        yield _select_block(candidates, groups, is_corruption & is_needed)
        rows = np.flatnonzero(is_corruption & ~is_needed)
        if len(rows):
            model = self.model.result()
            is_selected = np.ones(len(rows), np.bool_) if model is None else model.contains(candidates.atom[rows])
            outside = np.flatnonzero(~is_selected)
            is_selected[outside[:: max(1, len(outside) // num_outside)][:num_outside]] = True
            is_corruption[:] = False
            is_corruption[rows[is_selected]] = True
            yield _select_block(candidates, groups, is_corruption)


def _select_block(candidates: CandidateSet, groups: Groups, mask: NDArray[np.bool_]) -> Block:
    num = groups.count_where(mask)
    of = np.flatnonzero(num)
    return Block(of, np.arange(len(of)), num[of], candidates.take(np.flatnonzero(mask)))


class _Kinds(NamedTuple):
    """The g queries and sides with corruptions of K kinds, one kind after the other. A kind shares all its corruptions.

    groups: int64 [g], kind: int64 [g]  as in `Block`
    leader: int64 [K]  a query and side of each kind; query: int32 [K], side: int64 [K], triple: int32 [K, 3]
    """

    groups: NDArray[np.int64]
    kind: NDArray[np.int64]
    leader: NDArray[np.int64]
    query: NDArray[np.int32]
    side: NDArray[np.int64]
    triple: NDArray[np.int32]

    def build_block(self, begin: int, end: int, num: NDArray[np.int64], atom: NDArray[np.int32]) -> Block:
        """Build a block of some kinds, with `num` corruptions of each."""
        here = slice(*np.searchsorted(self.kind, (begin, end)))
        query, side = self.query[begin:end], self.side[begin:end].astype(np.int8)
        candidates = CandidateSet(np.repeat(query, num), np.repeat(side, num), atom)
        return Block(self.groups[here], self.kind[here] - begin, num, candidates)


class AllCorruptions:
    """All corruptions of every query and side, drawn only when they are needed.

    The corruptions inside the least model are ranges of its keys. Queries for the same argument of the same predicate and
    entity have the same corruptions, which are proved once.
    """

    def __init__(self, run: Run, model: Future[LeastModel | None], block_size: int) -> None:
        self._run, self.model, self._block_size = run, model, block_size
        self._num_constants = len(run.graph.program.symbols.constants)

    def draw(self, part: Part) -> Drawn:
        """Count the corruptions."""
        run = self._run
        query = np.repeat(np.array(part.queries, np.int32), len(BOTH_SIDES))
        side = np.tile(np.array(BOTH_SIDES, np.int64), len(part.queries))
        num = count_eligible(run.graph, run.triples[query], side)
        return Drawn(part, query, side, num, np.zeros(len(query), np.uint64), *_find_distinct(run, query, side))

    def draw_blocks(
        self, drawn: Drawn, needs_all: NDArray[np.bool_], true_score: NDArray[np.float64], share: Share
    ) -> Iterator[Block]:
        """Yield the corruptions of a share. needs_all: bool [G]; true_score: float64 [G], of the true triples."""
        whole = self._find_kinds(drawn, np.flatnonzero(needs_all))
        yield from self._draw_whole("corruptions", drawn, whole, true_score, share)
        others = self._find_kinds(drawn, np.flatnonzero(~needs_all))
        if len(others.leader) and self.model.result() is None:
            yield from self._draw_whole("other corruptions", drawn, others, true_score, share)
        elif len(others.leader):
            yield from self._draw_inside(drawn.part, others, share)

    def _find_kinds(self, drawn: Drawn, groups: NDArray[np.int64]) -> _Kinds:
        """Sort queries and sides by the corruptions that they have."""
        side, triple = drawn.side[groups], self._run.triples[drawn.query[groups]]
        kept = np.where(side == Side.HEAD, triple[:, 2], triple[:, 1])
        number = (triple[:, 0].astype(np.int64) * len(BOTH_SIDES) + side) * self._num_constants + kept
        first, kind = np.unique(number, return_index=True, return_inverse=True)[1:]
        order = np.argsort(kind, kind="stable")
        leader = groups[first]
        return _Kinds(groups[order], kind[order], leader, drawn.query[leader], side[first], triple[first])

    def _draw_whole(
        self, name: str, drawn: Drawn, kinds: _Kinds, true_score: NDArray[np.float64], share: Share
    ) -> Iterator[Block]:
        """Yield every corruption of each kind."""
        floor = np.full(len(kinds.leader), np.inf)
        lowest = true_score[kinds.groups] + (NOT_PROVED_PENALTY - RANK_TOLERANCE - MARGIN)
        np.minimum.at(floor, kinds.kind, lowest)
        starts = starts_of(drawn.num_corruptions[kinds.leader])
        stride = max(1, -(-int(starts[-1]) // choose_num_outside(drawn.part.num_candidates)))
        for begin, end in self._take(share, name, starts):
            block = kinds.build_block(
                begin, end, *draw_eligible(self._run.graph, kinds.triple[begin:end], kinds.side[begin:end])
            )
            floors = np.repeat(floor[begin:end], block.num)
            # Some candidates that could be stopped are proved nevertheless.
            floors[-starts[begin] % stride :: stride] = -np.inf
            yield block if _is_given_up(self.model) else block._replace(floor=floors)

    def _draw_inside(self, part: Part, kinds: _Kinds, share: Share) -> Iterator[Block]:
        """Yield the corruptions of each kind that follow from the program, and a few others."""
        outside = self._draw_outside(kinds, choose_num_outside(part.num_candidates))
        number = np.unique(np.concatenate((self._find_inside(kinds), outside)))
        kind, entities = np.divmod(number, self._num_constants)
        side = kinds.side[kind]
        atom = put_entities(kinds.triple[kind], side, entities.astype(np.int32))
        is_kept = may_be_drawn(self._run.graph, atom, side)
        atom, num = atom[is_kept], np.bincount(kind[is_kept], minlength=len(kinds.leader))
        starts = starts_of(num)
        for begin, end in self._take(share, "corruptions that follow", starts):
            yield kinds.build_block(begin, end, num[begin:end], atom[starts[begin] : starts[end]])

    def _take(self, share: Share, name: str, starts: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
        """Yield the bounds of the kinds that the process proves at once: one unit, or several that fill a block."""
        bounds = cut_units(starts, self._block_size)
        while taken := share.take(name, len(bounds) - 1):
            own = bounds[taken.start : taken.stop + 1]
            for begin, end in cut_rows(starts[own], self._block_size):
                yield own[begin], own[end]

    def _draw_outside(self, kinds: _Kinds, num: int) -> NDArray[np.int64]:
        """Draw entities for kinds with the seed: int64 [num], numbered as in `_find_inside`."""
        group: NDArray[np.uint64] = (kinds.query.astype(np.int64) * 4 + kinds.side).astype(np.uint64)
        key = mix(mix(np.array([self._run.seed ^ _SALT], np.uint64)) ^ group)
        order = np.argsort(key, kind="stable")
        draws = np.arange(num)
        kind = order[draws % len(order)]
        entities = mix(key[kind] ^ draws.astype(np.uint64)) % np.uint64(self._num_constants)
        return kind * self._num_constants + entities.astype(np.int64)

    def _find_inside(self, kinds: _Kinds) -> NDArray[np.int64]:
        """Find the entities whose atoms, for each kind, follow from the program.

        Return kind * number of constants + entity: int64, ascending.
        """
        model, found = self.model.result(), []
        assert model is not None
        for each in BOTH_SIDES:
            rows = np.flatnonzero(kinds.side == each)
            num, entities = model.select_entities(kinds.triple[rows], each)
            found.append(np.repeat(rows * self._num_constants, num) + entities)
        return np.sort(np.concatenate(found))


def _find_distinct(
    run: Run, query: NDArray[np.int32], side: NDArray[np.integer]
) -> tuple[CandidateSet, NDArray[np.int64]]:
    """Return the distinct true triples of queries and sides, and the index among them for each query and side."""
    triple = run.triples[query]
    number = number_atoms(triple, len(run.graph.program.symbols.constants))
    rows, position = np.unique(number, return_index=True, return_inverse=True)[1:]
    return CandidateSet(query[rows], side[rows].astype(np.int8), triple[rows]), position


class Tally(NamedTuple):
    """Counts for G queries and sides: corruptions above or tied with the true triple, and endings of the proved candidates.

    above, tied, num_limited: int64 [G]; num_outcomes: int64 [G, 4]
    """

    above: NDArray[np.int64]
    tied: NDArray[np.int64]
    num_limited: NDArray[np.int64]
    num_outcomes: NDArray[np.int64]


class RankOnly:
    """The work that proves the true triples of a part, then the corruptions that can affect a rank, and compares them.

    Blocks are drawn and compared while the engine works. First come all corruptions of the queries and sides whose true triple
    does not rank above everything that is not PROVED. Then come the corruptions of the other queries and sides that could be
    PROVED.
    """

    def __init__(
        self, run: Run, pipeline: Pipeline, source: DrawnCorruptions | AllCorruptions, block_size: int
    ) -> None:
        self._run, self._engine, self._source, self._block_size = run, pipeline.engine, source, block_size
        self.stop = Event()
        self.should_stop: Callable[[], bool] = lambda: False

    @property
    def model(self) -> LeastModel | None:
        """The least model, if it is built; a part that does not need it does not wait for it. UserError if it is too large."""
        return self._source.model.result() if self._source.model.done() else None

    @property
    def is_given_up(self) -> bool:
        """True if the least model takes more work than it can save."""
        return _is_given_up(self._source.model)

    @property
    def is_shareable(self) -> bool:
        """True if several processes may prove a part together."""
        return isinstance(self._source, AllCorruptions)

    def draw(self, part: Part) -> Drawn:
        """Draw the true triples."""
        return self._source.draw(part)

    def prove(self, part: Part, drawn: Drawn, progress: Progress, share: Share | None = None) -> PartResult:
        """Prove what can affect a rank. share: this process's share, if others prove the same part; by default all of it."""
        share = Share(ProcessGroup(), part.number) if share is None else share
        distinct, choices = self._prove(part, drawn.true, progress)
        true = take_candidates(distinct, drawn.position)._replace(query=drawn.query, side=drawn.side.astype(np.int8))
        true_score = ranking_scores(true)
        needs_all = ~ranks_above_unproved(true.outcome, true.log_probability)
        num_proved = len(distinct.query)
        with ThreadPoolExecutor(1) as beside, ThreadPoolExecutor(1) as awaiting_model:
            blocks = (
                each
                for each in self._source.draw_blocks(drawn, needs_all, true_score, share)
                if len(each.candidates.query)
            )
            upcoming = beside.submit(next, blocks, None)
            # The true triples count once.
            counted = take_candidates(true, slice(None if share.leads else 0))
            choices = choices if share.leads else ChoiceStatistics()
            tally = _tally(counted, len(true.query))
            samples = [beside.submit(draw_sample, counted, np.ones(len(counted.query), np.bool_), self._run.seed)]
            stopped: list[Future[Block]] = []
            while (block := self._wait_for(upcoming)) is not None:
                upcoming = beside.submit(next, blocks, None)
                # Count left-out candidates together with proved ones, so that the time left is estimated correctly.
                num_left_out = int(drawn.num_corruptions[block.groups].sum()) - len(block.candidates.query)
                progress(num_left_out)
                num_proved += num_left_out
                proved, of_block = self._prove(part, block.candidates, progress, block.floor)
                choices = choices.combine(of_block)
                num_proved += len(proved.query)
                samples.append(beside.submit(self._compare, block, proved, true_score, tally))
                if (is_stopped := proved.outcome == STOPPED).any():
                    stopped.append(awaiting_model.submit(self._take_inside, block, is_stopped))
                if stopped and stopped[0].done():
                    # An error in the model ends the work at once.
                    stopped[0].result()
            if inside := [each for each in (future.result() for future in stopped) if len(each.candidates.query)]:
                block = Block.join(inside)
                proved, of_block = self._prove(part, block.candidates, no_progress)
                choices = choices.combine(of_block)
                samples.append(beside.submit(self._compare, block, proved, true_score, tally))
        progress(part.num_candidates - num_proved)
        sample = join_samples(each.result() for each in samples)
        rankings = Rankings(
            drawn.query,
            drawn.side.astype(np.int8),
            (drawn.num_corruptions + 1).astype(np.uint32),
            1.0 + tally.above.astype(np.float64),
            1.0 + (tally.above + tally.tied).astype(np.float64),
        )
        counts = tally.num_outcomes.astype(np.uint32), tally.num_limited.astype(np.uint32)
        ends = true.outcome, true.log_probability
        return PartResult(*rankings, *ends, *counts, drawn.entities, sample, choices)

    def summarize(self, part: Part, proved: PartResult) -> PartResult:
        """Return the ranks among all candidates, and the counts of the proved candidates."""
        return proved

    def _prove(
        self, part: Part, candidates: CandidateSet, progress: Progress, floor: NDArray[np.float64] | None = None
    ) -> tuple[Candidates, ChoiceStatistics]:
        proved, choices = prove_candidates(self._engine, candidates, progress, floor)
        if not np.isfinite(proved.log_probability).all():
            raise refuse_scores(part)
        return proved, choices

    def _wait_for(self, upcoming: "Future[Block | None]") -> Block | None:
        """Wait for a block. If the work is interrupted while the block waits for the least model, end the model at once."""
        try:
            while not wait([upcoming], timeout=0.1).done:
                if self.should_stop():
                    self.stop.set()
            return upcoming.result()
        except BaseException:
            self.stop.set()
            raise

    def _take_inside(self, block: Block, mask: NDArray[np.bool_]) -> Block:
        """Return a block of the selected candidates inside the least model; all of them if the model was given up."""
        model = self._source.model.result()
        selected = block.take(mask)
        if model is None:
            return selected
        return selected.take(model.contains(selected.candidates.atom))

    def _compare(self, block: Block, proved: Candidates, true_score: NDArray[np.float64], tally: Tally) -> Sample:
        """Add the corruptions of a block to the tally, and return a sample of them. Stopped corruptions rank below.

        InternalError for a corruption that was stopped too early.
        """
        groups, kind = block.groups, block.kind
        floor = -np.inf if block.floor is None else block.floor
        is_stopped = proved.outcome == STOPPED
        if (is_stopped & (proved.log_probability >= floor)).any():
            raise InternalError("the engine stopped a derivation that is not below its floor")
        starts, score = starts_of(block.num), ranking_scores(proved)
        outcomes, limited = _count_endings(np.repeat(np.arange(len(block.num)), block.num), proved, len(block.num))
        tally.num_outcomes[groups] += outcomes[kind]
        tally.num_limited[groups] += limited[kind]
        for begin, end in cut_rows(starts_of(block.num[kind]), 2 * self._block_size):
            of, here = kind[begin:end], groups[begin:end]
            bounds = starts_of(block.num[of])
            gaps = score[expand_rows(starts, of)] - np.repeat(true_score[here], block.num[of])
            for counts, mask in zip((tally.above, tally.tied), compare_gaps(gaps, RANK_TOLERANCE), strict=True):
                counts[here] += count_where(mask, bounds)
        return draw_sample(proved, np.zeros(len(score), np.bool_), self._run.seed)


def build_rank_only(run: Run, pipeline: Pipeline, block_size: int | None = None) -> RankOnly:
    """Build the rank-only work of a run, and its least model in another thread.

    UserError for a pipeline with its own draw or ranks, and later, when the model is needed, if the model is too large.
    """
    if pipeline.draw is not draw_candidates or pipeline.rank is not rank_candidates:
        raise UserError(
            "draws and ranks by itself, but the draw or the ranks to be evaluated are others",
            where="rank_only",
            fix="leave --rank-only out, and all candidates are proved",
        )
    block_size = BLOCK_SIZE if block_size is None else block_size
    stop = Event()
    model = _start_model(run, pipeline.engine, stop.is_set)
    source = AllCorruptions(run, model, block_size) if run.num_corruptions == ALL else DrawnCorruptions(run, model)
    work = RankOnly(run, pipeline, source, block_size)
    work.stop = stop
    return work


def _is_given_up(model: Future[LeastModel | None]) -> bool:
    return model.done() and model.exception() is None and model.result() is None


def _start_model(run: Run, engine: Engine, must_stop: Callable[[], bool]) -> Future[LeastModel | None]:
    """Build the least model in a thread; with CUDA, on this thread's current GPU."""
    prepare = make_entry(COMPILED).keep_device() if engine.info.device == "cuda" else None
    thread = ThreadPoolExecutor(1, initializer=prepare)
    model = thread.submit(copy_context().run, build_model, run, engine, must_stop)
    thread.shutdown(wait=False)
    return model


def build_model(run: Run, engine: Engine, must_stop: Callable[[], bool] = lambda: False) -> LeastModel | None:
    """Build the least model of a run's program; None if it takes more work than it can save, does not fit, or needs torch."""
    most_work = choose_most_work(run, engine)
    if most_work <= 0:
        return None
    return make_entry(COMPILED).build_least_model(
        run.graph.program, device=engine.info.device, most_work=most_work, must_stop=must_stop
    )


def choose_num_outside(num_candidates: int) -> int:
    """Return the number of a part's candidates that are proved although they could be left out."""
    return min(NUM_OUTSIDE, -(-num_candidates // _OUTSIDE_RATIO))


def ranks_above_unproved(outcome: NDArray[np.int8], log_probability: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return whether true triples with these endings rank above everything that is not PROVED: bool [n]."""
    is_above: NDArray[np.bool_] = (outcome == Outcome.PROVED) & (
        log_probability > MARGIN + RANK_TOLERANCE - NOT_PROVED_PENALTY
    )
    return is_above


def _tally(true: Candidates, num: int) -> Tally:
    """Count the true triples of the first of `num` queries and sides, without corruptions."""
    num_outcomes, num_limited = _count_endings(np.arange(len(true.query)), true, num)
    return Tally(np.zeros(num, np.int64), np.zeros(num, np.int64), num_limited, num_outcomes)


def _count_endings(
    owner: NDArray[np.int64], candidates: Candidates, num: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count the candidates of each owner by outcome, int64 [num, 4], and the limited candidates, int64 [num].

    Stopped candidates are not counted.
    """
    width = 1 + STOPPED
    ended = np.bincount(owner * width + candidates.outcome, minlength=num * width).reshape(num, width)
    is_limited = (candidates.is_limited != 0) & (candidates.outcome != STOPPED)
    return ended[:, : len(Outcome)], np.bincount(owner[is_limited], minlength=num)
