"""Appending to a trace from several threads: work that begins in order, overlaps, and ends in order."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Protocol, Self

from kgverify.trace.model.columns import Candidates, StepBatch


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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.wait_for_others()
        self.let_next_begin()
        self._has_ended.set()
        self._previous = None


class QueuedWriter(Protocol):
    """A writer to which several threads append in the order of its tickets."""

    def reserve(self) -> CommitTicket:
        """Return the ticket of the next append."""

    def append_reserved(self, ticket: CommitTicket, read: Callable[[], StepBatch]) -> Candidates:
        """Append the batch that `read` returns, in the order of its ticket."""


def append_in_parallel(
    writer: QueuedWriter, parts: Iterable[Callable[[], StepBatch]], num_threads: int = 1
) -> Iterator[Candidates]:
    """Append each part in order while the next one is made; yield its candidates when `append` would have returned.

    parts:       functions that read a part, each called in its own thread
    num_threads: parts that are read, checked, packed and written at the same time. That many, and one shard, are in
                 memory, beside the part being made. Parts that fill no shard wait for those before them

    The trace is the same for any `num_threads`. After an error in one part, what precedes it is kept, nothing that follows
    is, and the writer is closed.
    """
    with ThreadPoolExecutor(num_threads, thread_name_prefix="append") as pool:
        waiting: deque[Future[Candidates]] = deque()
        for read in parts:
            if len(waiting) == num_threads:
                yield waiting.popleft().result()
            # None of them may be cancelled: every ticket that was reserved must be used.
            waiting.append(pool.submit(writer.append_reserved, writer.reserve(), read))
        while waiting:
            yield waiting.popleft().result()
