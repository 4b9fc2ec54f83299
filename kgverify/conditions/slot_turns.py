"""The turns in which candidates get the slots of a batch, as far as the declared sizes and the recorded steps imply them."""

import heapq
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from kgverify.program.outcomes import Outcome

CHUNKS: Final = ("chunk", "batch", "batch_size", "pool")
"""The names under which an engine may declare the number of candidates that it takes at once."""


class Turn(NamedTuple):
    """The turn in which a candidate gets a slot.

    chunk, position: the number of its chunk, and its position in it
    slot, number:    its slot, and the number of its turn there, from 0
    is_partial:      whether not all slots have a turn
    outcome, num_steps: of the slot's candidate just before; -1 and 0 without one
    has_proved:      whether the slot has proved any candidate of this chunk before
    is_same_query:   whether the candidate just before had the same query
    tick:            the steps that its slot took before it, since the start of its chunk; -1 if that is unknown
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
    tick: int = -1

    @property
    def is_used(self) -> bool:
        """True if the slot was used before."""
        return self.number > 0


def find_turns(
    layout: Mapping[str, int], queries: Sequence[int], outcomes: Sequence[int], num_steps: Sequence[int]
) -> list[Turn] | None:
    """Return the turn of each candidate; None if the engine does not name its slots.

    outcomes:  those expected
    num_steps: those of the actual side, which decide when a slot is free

    An engine with a pool gives a free slot the next candidate after each step. One without gives slot i the candidates
    i, i + slots, ...
    """
    slots, num = layout.get("slots", 0), len(queries)
    if slots < 1:
        return None
    size = next((layout[name] for name in CHUNKS if layout.get(name, 0) > 0), num) or 1
    turns: list[Turn] = []
    for first in range(0, num, size):
        rows = range(first, min(first + size, num))
        is_recycled = "pool" in layout
        places = _recycle(rows, slots, num_steps) if is_recycled else [((row - first) % slots, -1) for row in rows]
        last: dict[int, int] = {}
        numbers: dict[int, int] = {}
        proved: set[int] = set()
        full = first + len(rows) // slots * slots
        for row, (slot, tick) in zip(rows, places, strict=True):
            before = last.get(slot)
            turns.append(
                Turn(
                    chunk=first // size,
                    position=row - first,
                    slot=slot,
                    number=numbers.get(slot, 0),
                    is_partial=len(rows) > slots and row >= full,
                    outcome=-1 if before is None else int(outcomes[before]),
                    num_steps=0 if before is None else int(num_steps[before]),
                    has_proved=slot in proved,
                    is_same_query=before is not None and queries[before] == queries[row],
                    tick=tick,
                )
            )
            last[slot], numbers[slot] = row, numbers.get(slot, 0) + 1
            if outcomes[row] == Outcome.PROVED:
                proved.add(slot)
    return turns


def _recycle(rows: range, slots: int, num_steps: Sequence[int]) -> list[tuple[int, int]]:
    """Return the slot of each candidate, and the steps that the slot took before it.

    Every slot takes a step at a time, and the lowest free slot comes first.
    """
    free = [(0, slot) for slot in range(slots)]
    places = []
    for row in rows:
        tick, slot = heapq.heappop(free)
        places.append((slot, tick))
        heapq.heappush(free, (tick + max(1, int(num_steps[row])), slot))
    return places
