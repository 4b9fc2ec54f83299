"""The other candidates of a batch as a candidate meets them: proofs in other slots, and goals that slots have visited."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Final

from kgverify.comparison.step_view import StepReader
from kgverify.conditions.slot_turns import Turn
from kgverify.program.atoms import Goal
from kgverify.program.outcomes import Outcome

MOST_CANDIDATES: Final = 5_000
"""The candidates of a run up to which the goals that slots have visited are read."""


class SlotHistory:
    """The use of the slots of an engine in which every slot takes a step at a time.

    turns:     of all candidates
    outcomes, num_steps: of the actual side
    expected, num_expected: the outcomes and the steps of the expected side
    read:      returns readers of all steps of the expected and of the actual side
    """

    def __init__(
        self,
        turns: Sequence[Turn],
        outcomes: Sequence[int],
        num_steps: Sequence[int],
        expected: Sequence[int],
        num_expected: Sequence[int],
        read: Callable[[], tuple[StepReader, StepReader]],
    ) -> None:
        self._turns, self._outcomes, self._num_steps, self._num_expected = turns, outcomes, num_steps, num_expected
        self._expected = expected
        self._read = read

    def meets_proof(self, row: int) -> bool:
        """Return whether another slot proves its candidate at a step of this one that leaves a goal."""
        turn = self._turns[row]
        # A step that ends in TRUE or FALSE has no goal to lose.
        is_open = self._expected[row] == Outcome.DEPTH_LIMIT
        ticks = range(turn.tick, turn.tick + self._num_expected[row] - (not is_open))
        return any(self._proofs.get((turn.chunk, tick), set()) - {row} for tick in ticks)

    @cached_property
    def _proofs(self) -> dict[tuple[int, int], set[int]]:
        """The candidates that are proved, by their chunk and the step of it."""
        found: dict[tuple[int, int], set[int]] = {}
        for row, (turn, outcome, num) in enumerate(zip(self._turns, self._outcomes, self._num_steps, strict=True)):
            if outcome == Outcome.PROVED:
                found.setdefault((turn.chunk, turn.tick + num - 1), set()).add(row)
        return found

    def meets_earlier_goal(self, row: int) -> bool | None:
        """Return whether a resolvent equals a goal that the slot visited before, at a later step; None if that is unknown."""
        if len(self._turns) > MOST_CANDIDATES:
            return None
        left = self._before[row]
        return len(left) > 1 and any(made & set(left[i + 1 :]) for i, made in enumerate(self._made(row)))

    @cached_property
    def _rows_of(self) -> dict[tuple[int, int], list[int]]:
        found: dict[tuple[int, int], list[int]] = {}
        for row, turn in enumerate(self._turns):
            found.setdefault((turn.chunk, turn.slot), []).append(row)
        return found

    @cached_property
    def _readers(self) -> tuple[StepReader, StepReader]:
        return self._read()

    @cached_property
    def _before(self) -> list[tuple[Goal, ...]]:
        """The goals that the list of its slot still holds when each candidate begins, one for each step."""
        before: list[tuple[Goal, ...]] = [()] * len(self._turns)
        for rows in self._rows_of.values():
            held: tuple[Goal, ...] = ()
            for row in rows:
                before[row] = held
                goals = self._goals(row)
                held = (*goals, *held[len(goals) :])
        return before

    def _goals(self, row: int) -> tuple[Goal, ...]:
        reader = self._readers[1]
        first, end = reader.first_step[row : row + 2]
        return tuple(reader.goal_of(i) for i in range(first, end))

    def _made(self, row: int) -> list[set[Goal]]:
        """Return the resolvents of each step of the expected side."""
        reader = self._readers[0]
        first, end = reader.first_step[row : row + 2]
        return [{each.atoms for each in reader.read(i).resolvents} for i in range(first, end)]
