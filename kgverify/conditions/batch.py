"""The candidates of a run: their positions in rankings, their turns in the slots of the batch, and other candidates there."""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.inference.origins import OriginInference
from kgverify.comparison.step_view import StepReader
from kgverify.program.atoms import Goal
from kgverify.program.fact_index import Ids
from kgverify.program.outcomes import Outcome
from kgverify.ranking.rank import find_truth
from kgverify.ranking.rules import find_known
from kgverify.trace.model.columns import Candidates
from kgverify.trace.model.header import EngineInfo

CHUNKS: Final = ("chunk", "batch", "batch_size", "pool")
"""The names by which an engine may declare the number of candidates that it takes at once."""

MOST_CANDIDATES: Final = 5_000
"""The largest number of candidates of a run for which the goals visited by slots are read."""


class Turn(NamedTuple):
    """The turn of a candidate in a slot.

    chunk, position: the number of its chunk, and its position in it
    slot, number:    its slot, and the number of its turn there, from 0
    is_partial:      whether some slots have no candidate in this turn
    outcome, num_steps: those of the slot's previous candidate; -1 and 0 for the first candidate
    has_proved:      whether the slot has already proved a candidate of this chunk
    is_same_query:   whether the slot's previous candidate had the same query
    tick:            the steps that its slot took before it, since the start of its chunk; -1 if unknown
    """

    chunk: int
    position: int
    slot: int
    number: int
    is_partial: bool
    outcome: int
    num_steps: int
    has_proved: bool
    is_same_query: bool
    tick: int


class Actual(NamedTuple):
    """The outcome and the number of steps of each candidate on the actual side."""

    outcome: Sequence[int]
    num_steps: Sequence[int]


class Candidate(NamedTuple):
    """A candidate of the expected run.

    place:  its position among the candidates of its query and side, from 0, the true candidate
    num_alike: the number of candidates of its query and side
    rows_left: the number of candidates after it in the run
    turn:   its turn in the slots of the batch; None if the engine does not declare its slots
    history: the reader of earlier goals and proofs in the slots, if all slots take steps in parallel
    splits: the splits other than train that hold it, none if it is the triple of its query; None if they are unknown
    actual_row: its row in the actual run; None if it is not there
    """

    row: int
    query: int
    side: int
    atom: Ids
    outcome: int
    num_steps: int
    place: int
    is_fact: bool | None
    num_alike: int
    rows_left: int
    turn: Turn | None = None
    history: "CandidateReader | None" = None
    splits: frozenset[str] | None = None
    actual_row: int | None = None

    @property
    def num_in_run(self) -> int:
        """The number of candidates in its run."""
        return self.row + 1 + self.rows_left

    def is_in_partial_block(self, size: int) -> bool:
        """Return whether it is one of the last candidates of its run, which are too few for a block of this size."""
        return self.row >= self.num_in_run - self.num_in_run % size


@dataclass(eq=False)
class CandidateReader:
    """A reader of the candidates of a run.

    expected:  the candidates of the expected side
    actual:    the results of the actual side; None if it has other candidates
    info:      the description of the engine under test
    read_both: a function that returns readers of all steps of both sides; None if slots have no history
    splits:    the triples of each split other than train, int32 [n, 3]; None if they are unknown
    actual_rows: int64 [N]  the row of each candidate in the actual run, -1 if it is not there; None if it is the same row
    """

    expected: Candidates
    actual: Actual | None
    info: EngineInfo
    inference: OriginInference | None
    read_both: Callable[[], tuple[StepReader, StepReader]] | None = None
    splits: Mapping[str, NDArray[np.int32]] | None = None
    actual_rows: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        self._known: dict[int, Candidate] = {}

    def read(self, row: int) -> Candidate:
        """Return the candidate in a row."""
        if row not in self._known:
            c = self.expected
            predicate, first, second = c.atom[row].tolist()
            atom = predicate, first, second
            actual_row = row if self.actual_rows is None else int(self.actual_rows[row])
            self._known[row] = Candidate(
                row=row,
                query=int(c.query[row]),
                side=int(c.side[row]),
                atom=atom,
                outcome=int(c.outcome[row]),
                num_steps=int(c.num_steps[row]),
                place=int(self._places[0][row]),
                is_fact=None if self.inference is None else atom in self.inference.clauses.fact_index,
                num_alike=int(self._places[1][row]),
                rows_left=len(c.query) - 1 - row,
                turn=self.turns[row] if self.turns else None,
                history=self if self.turns and self.read_both is not None and self.turns[0].tick >= 0 else None,
                splits=None if self._held is None else frozenset(s for s, held in self._held.items() if held[row]),
                actual_row=None if actual_row < 0 else actual_row,
            )
        return self._known[row]

    @cached_property
    def _held(self) -> dict[str, NDArray[np.bool_]] | None:
        """The candidates that each split holds, without the triples of the queries: bool [N] each."""
        if self.splits is None:
            return None
        others = ~find_truth(self.expected, None, None).mark(self.expected)
        return {split: find_known(self.expected, triples) & others for split, triples in self.splits.items()}

    @cached_property
    def _places(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The position of each candidate among the candidates of its query and side, and their number: int64 [N]."""
        keys = self.expected.query.astype(np.int64) * 4 + self.expected.side
        _, of_key, sizes = np.unique(keys, return_inverse=True, return_counts=True)
        places = np.empty(len(keys), np.int64)
        places[np.argsort(keys, kind="stable")] = np.arange(len(keys)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return places, sizes[of_key]

    @cached_property
    def turns(self) -> list[Turn]:
        """The turns in the slots of the batch; empty if the engine does not declare its slots."""
        return [] if self.actual is None else find_turns(self.info.layout, self.expected, self.actual.num_steps)

    def meets_proof(self, row: int) -> bool:
        """Return whether another slot proves its candidate during a step of this candidate that leaves a goal."""
        turn = self.turns[row]
        # A step that ends in TRUE or FALSE leaves no goal that could be lost.
        is_open = int(self.expected.outcome[row]) == Outcome.DEPTH_LIMIT
        ticks = range(turn.tick, turn.tick + int(self.expected.num_steps[row]) - (not is_open))
        return any(self._proofs.get((turn.chunk, tick), set()) - {row} for tick in ticks)

    @cached_property
    def _proofs(self) -> dict[tuple[int, int], set[int]]:
        """The proved candidates, by their chunk and the step of the chunk."""
        found: dict[tuple[int, int], set[int]] = {}
        for row, (turn, outcome, num) in enumerate(zip(self.turns, *(self.actual or ()), strict=True)):
            if outcome == Outcome.PROVED:
                found.setdefault((turn.chunk, turn.tick + num - 1), set()).add(row)
        return found

    def meets_earlier_goal(self, row: int) -> bool | None:
        """Return whether a resolvent equals the goal of a later step that an earlier candidate left in the slot.

        None if unknown.
        """
        if len(self.turns) > MOST_CANDIDATES:
            return None
        left, reader = self._before[row], self._readers[0]
        made = ({each.atoms for each in reader.read(i).resolvents} for i in _steps_of(reader, row))
        return len(left) > 1 and any(atoms & set(left[i + 1 :]) for i, atoms in enumerate(made))

    @cached_property
    def _readers(self) -> tuple[StepReader, StepReader]:
        assert self.read_both is not None
        return self.read_both()

    @cached_property
    def _before(self) -> list[tuple[Goal, ...]]:
        """The goals that the slot of each candidate still holds when the candidate begins, one goal for each step."""
        before, reader = [], self._readers[1]
        held: dict[tuple[int, int], tuple[Goal, ...]] = {}
        for row, turn in enumerate(self.turns):
            slot = turn.chunk, turn.slot
            before.append(held.get(slot, ()))
            goals = tuple(map(reader.goal_of, _steps_of(reader, row)))
            held[slot] = (*goals, *before[-1][len(goals) :])
        return before


def _steps_of(reader: StepReader, row: int) -> range:
    return range(*reader.first_step[row : row + 2])


def find_turns(layout: Mapping[str, object], expected: Candidates, num_steps: Sequence[int]) -> list[Turn]:
    """Return the turn of each candidate; return none if the engine does not declare its slots.

    num_steps: the numbers of steps on the actual side, which decide when a slot is free

    An engine with a pool gives free slots the next candidates after each step. An engine without a pool gives slot i the
    candidates i, i + slots, ...
    """
    sizes = {name: size for name, size in layout.items() if isinstance(size, int)}
    queries, outcomes = expected.query.tolist(), expected.outcome.tolist()
    slots, num = sizes.get("slots", 0), len(queries)
    if slots < 1:
        return []
    size = next((sizes[name] for name in CHUNKS if sizes.get(name, 0) > 0), num) or 1
    turns: list[Turn] = []
    for first in range(0, num, size):
        rows = range(first, min(first + size, num))
        places = _recycle(rows, slots, num_steps) if "pool" in sizes else [((i - first) % slots, -1) for i in rows]
        full = first + len(rows) // slots * slots
        last: dict[int, Turn] = {}
        for row, (slot, tick) in zip(rows, places, strict=True):
            before = last.get(slot)
            at = -1 if before is None else first + before.position
            last[slot] = Turn(
                chunk=first // size,
                position=row - first,
                slot=slot,
                number=0 if before is None else before.number + 1,
                is_partial=len(rows) > slots and row >= full,
                outcome=-1 if before is None else outcomes[at],
                num_steps=0 if before is None else num_steps[at],
                has_proved=before is not None and (before.has_proved or outcomes[at] == Outcome.PROVED),
                is_same_query=before is not None and queries[at] == queries[row],
                tick=tick,
            )
            turns.append(last[slot])
    return turns


def _recycle(rows: range, slots: int, num_steps: Sequence[int]) -> list[tuple[int, int]]:
    """Return the slot of each candidate, and the number of steps that the slot took before it.

    All slots take steps in parallel, and the lowest free slot gets the next candidate.
    """
    free = [(0, slot) for slot in range(slots)]
    places = []
    for row in rows:
        tick, slot = heapq.heappop(free)
        places.append((slot, tick))
        heapq.heappush(free, (tick + max(1, int(num_steps[row])), slot))
    return places
