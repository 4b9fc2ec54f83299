"""An engine whose candidates are proved by many workers in parallel: processes, or machines."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, as_completed
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kgverify.engines.protocol import Engine, Positions, ProbedEngine, StageOutputs, split_positions
from kgverify.engines.sent_maker import SentMaker, make_once
from kgverify.errors import UserError
from kgverify.progress import Progress, no_progress
from kgverify.trace.model.columns import CandidateSet, Columns, concatenate
from kgverify.trace.model.header import EngineInfo
from kgverify.trace.model.levels import TraceLevel

CHUNK: Final = 32
"""The number of candidates or positions of one task."""
CHUNKS_AHEAD: Final = 4
"""Tasks sent for each worker, so that none waits for the next one."""
CHUNKS_READ: Final = 16
"""Tasks whose results are recorded at once."""


class FannedOut:
    """An engine with the results of `make()`, in the same order, for any kind and number of workers.

    make:     makes an engine; it is pickled, sent to the workers, and called once in each of their threads
    executor: an executor of the standard library, or one with its interface; the caller shuts it down
    chunk:    the number of candidates or positions of one task
    share:    turns bytes into an argument that the executor delivers as the same bytes; for executors with a better way
              than sending them with every call
    count_workers: returns the tasks that the workers do at the same time

    An error in a worker is raised here, and tasks that have not begun are cancelled. UserError if a worker dies.
    """

    def __init__(
        self,
        make: Callable[[], ProbedEngine],
        executor: Executor,
        chunk: int = CHUNK,
        share: Callable[[bytes], Any] = bytes,
        count_workers: Callable[[], int] = lambda: CHUNKS_READ,
    ) -> None:
        if chunk < 1:
            raise ValueError(f"expected a chunk of 1 candidate or more, found {chunk}")
        self._here = make()
        self._executor = executor
        self._chunk = chunk
        self._count_workers = count_workers
        self._made = SentMaker(make, share).arguments

    def warm_up(self, num: int) -> None:
        """Let `num` workers make their engines, without waiting for them."""
        nothing = CandidateSet(np.zeros(0, np.int32), np.zeros(0, np.int8), np.zeros((0, 3), np.int32))
        for _ in range(num):
            self._submit(_prove, nothing)

    @property
    def info(self) -> EngineInfo:
        """The description of the engine, which workers do not change."""
        return self._here.info

    @property
    def proves_ahead(self) -> bool:
        """True: workers prove the next candidates while others are recorded."""
        return True

    def record(
        self, candidates: CandidateSet, progress: Progress = no_progress, *, level: TraceLevel = TraceLevel.STEPS
    ) -> Iterator["_Recorded"]:
        """Run every candidate to its end, and yield them in the order given."""
        waiting = iter(self._split(candidates))
        futures: deque[Future[Columns]] = deque()
        with _cancelled_at_end(futures):
            while True:
                room = max(CHUNKS_READ, CHUNKS_AHEAD * self._count_workers()) - len(futures)
                futures += (self._submit(_prove, part) for part in islice(waiting, max(0, room)))
                if not futures:
                    return
                read: list[Columns] = []
                while futures and len(read) < CHUNKS_READ:
                    read.append(futures.popleft().result())
                    progress(len(read[-1].candidates.query))
                yield _Recorded(concatenate(read))

    def prove(self, candidates: CandidateSet, progress: Progress = no_progress) -> Columns:
        """Run every candidate to its end."""
        if not len(candidates.query):
            return self._here.prove(candidates, progress)
        return self._gather(_prove, self._split(candidates), progress)

    def step(self, positions: Positions) -> Columns:
        """Take one step from each position."""
        if not len(positions.depth):
            return self._here.step(positions)
        return self._gather(_step, split_positions(positions, self._chunk), no_progress)

    def probe(self, position: Positions) -> StageOutputs:
        """Return the output of each stage of one step, taken in this process."""
        return self._here.probe(position)

    def _split(self, candidates: CandidateSet) -> list[CandidateSet]:
        num = len(candidates.query)
        return [candidates.take(slice(begin, begin + self._chunk)) for begin in range(0, num, self._chunk)]

    def _submit(self, work: Callable[..., Columns], part: Any) -> Future[Columns]:
        return self._executor.submit(work, *self._made, part)

    def _gather(self, work: Callable[..., Columns], parts: Iterable[Any], progress: Progress) -> Columns:
        futures: deque[Future[Columns]] = deque()
        with _cancelled_at_end(futures):
            futures += (self._submit(work, part) for part in parts)
            for future in as_completed(futures):
                progress(len(future.result().candidates.query))
            return concatenate([future.result() for future in futures])


class _Recorded:
    """Candidates that workers proved."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def read(self) -> tuple[Columns, NDArray[np.uint64] | None]:
        """Return them; their digests are taken where they are recorded."""
        return self._columns, None


@contextmanager
def _cancelled_at_end(futures: Iterable[Future[Any]]) -> Iterator[None]:
    """Cancel the futures that have not begun when the context ends. UserError if a worker dies inside of it."""
    try:
        yield
    except BrokenExecutor as error:
        raise UserError(
            f"a worker died before its work was done ({error})",
            where="workers of the reference",
            fix="use fewer: each holds the program in its memory",
        ) from error
    finally:
        for future in futures:
            future.cancel()


def _prove(make: bytes, name: str, candidates: CandidateSet) -> Columns:
    engine: Engine = make_once(make, name)
    return engine.prove(candidates)


def _step(make: bytes, name: str, positions: Positions) -> Columns:
    engine: Engine = make_once(make, name)
    return engine.step(positions)
