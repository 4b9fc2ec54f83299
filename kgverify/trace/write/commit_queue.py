"""Threads whose work begins in order, goes on side by side, and ends in order."""

import threading
from types import TracebackType
from typing import Self


class Turns:
    """Gives out turns. Each that was taken must be entered, and left, or those after it wait for ever."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.num_taken = self.num_entered = self.num_begun = self.num_ended = 0

    def take(self) -> "Turn":
        """The next turn."""
        with self.changed:
            self.num_taken += 1
            return Turn(self, self.num_taken - 1)


class Turn:
    """A context manager: leaving it ends the turn, as soon as all turns before it have ended."""

    def __init__(self, turns: Turns, number: int) -> None:
        self._turns, self._number = turns, number

    def wait_to_begin(self) -> None:
        """Until every turn before this one has let this one begin."""
        with self._turns.changed:
            self._turns.changed.wait_for(lambda: self._turns.num_begun >= self._number)
            self._turns.num_entered = max(self._turns.num_entered, self._number + 1)

    def begin(self) -> None:
        """Let the next turn begin."""
        self.wait_to_begin()
        with self._turns.changed:
            self._turns.num_begun = max(self._turns.num_begun, self._number + 1)
            self._turns.changed.notify_all()

    def take_back(self) -> bool:
        """As if this turn had not let the next one begin; whether that can be, because it has not begun."""
        with self._turns.changed:
            if self._turns.num_entered > self._number + 1:
                return False
            self._turns.num_begun = self._number
            return True

    def wait_for_others(self) -> None:
        """Until every turn before this one has ended."""
        with self._turns.changed:
            self._turns.changed.wait_for(lambda: self._turns.num_ended == self._number)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.wait_for_others()
        self.begin()
        with self._turns.changed:
            self._turns.num_ended += 1
            self._turns.changed.notify_all()
