"""Processes that share an evaluation: what they need of one another, and the team of a process alone."""

from typing import Final, Protocol


class Team(Protocol):
    """One process of those that share the work. Process 0 leads: it says what is to be done, and tells what came of it."""

    @property
    def index(self) -> int:
        """The number of this process."""
        ...

    @property
    def size(self) -> int:
        """How many there are."""
        ...

    def share(self, said: bytes) -> bytes:
        """What the leader says, to all, in the order it is said."""
        ...

    def add(self, counter: str, num: int) -> int:
        """Add to a counter that all processes share; what it then holds."""
        ...


class Alone:
    """The only process."""

    index: Final = 0
    size: Final = 1

    def __init__(self) -> None:
        self._counters: dict[str, int] = {}

    def share(self, said: bytes) -> bytes:
        """What it says to itself."""
        return said

    def add(self, counter: str, num: int) -> int:
        """Add to a counter; what it then holds."""
        self._counters[counter] = self._counters.get(counter, 0) + num
        return self._counters[counter]


def start_team() -> Team:
    """The team that `torchrun` started this process for, or the process alone. UserError as of `join_team`."""
    from kgverify.engines.compiled.execution.process_group import join_team

    return join_team() or Alone()
