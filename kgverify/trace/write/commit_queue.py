"""The order of appends from several threads: they begin in order, overlap, and end in order."""

import threading
from typing import Self


class CommitQueue:
    """The order of appends. Every ticket must be used as a context manager; otherwise later ones block forever."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: CommitTicket | None = None

    def reserve(self) -> "CommitTicket":
        """Return the next ticket."""
        with self._lock:
            self._last = CommitTicket(self._last)
            return self._last

    def is_last(self, ticket: "CommitTicket") -> bool:
        """Return whether no later ticket was reserved."""
        return self._last is ticket


class CommitTicket:
    """One append in a queue. Leaving the context ends it, as soon as all tickets before it have ended."""

    def __init__(self, previous: "CommitTicket | None") -> None:
        self._previous = previous
        self._has_begun, self._has_ended = threading.Event(), threading.Event()

    def wait_to_begin(self) -> None:
        """Wait until the ticket before this one lets it begin."""
        if self._previous is not None:
            self._previous._has_begun.wait()

    def let_next_begin(self) -> None:
        """Let the next ticket begin, once this one may."""
        self.wait_to_begin()
        self._has_begun.set()

    def wait_for_others(self) -> None:
        """Wait until every ticket before this one has ended."""
        if self._previous is not None:
            self._previous._has_ended.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.wait_for_others()
        self.let_next_begin()
        self._has_ended.set()
        self._previous = None
