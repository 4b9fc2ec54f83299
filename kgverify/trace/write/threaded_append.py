"""Appending to a trace by several threads, the same trace as by one."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from kgverify.trace.model.columns import Candidates
from kgverify.trace.write.uncommitted import Given
from kgverify.trace.write.writer import TraceWriter


def append_ahead(
    writer: TraceWriter, parts: Iterable[Callable[[], Given]], num_threads: int = 1
) -> Iterator[Candidates]:
    """Append each part while the next one is made, in order; the candidates of each, when `append` would have returned.

    parts:       how each is read: called in a thread of its own
    num_threads: parts that are read, checked, packed and written at the same time; so many, and one shard, are in memory,
                 beside the part being made. Those that fill no shard wait for those before them

    The trace is the same whatever `num_threads` is. An error in one ends all: what came before it is kept, nothing that comes
    after it is; the writer is closed then.
    """
    with ThreadPoolExecutor(num_threads, thread_name_prefix="append") as pool:
        waiting: deque[Future[Candidates]] = deque()
        for read in parts:
            if len(waiting) == num_threads:
                yield waiting.popleft().result()
            # None of them may be cancelled: each turn that was taken must come.
            waiting.append(pool.submit(writer.append_in_turn, writer.take_turn(), read))
        while waiting:
            yield waiting.popleft().result()
