"""An engine whose candidates are proved by many workers in parallel: processes, or machines."""

import hashlib
import pickle
import threading
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import BrokenExecutor, Executor, Future, as_completed
from typing import Any, Final

import numpy as np

from kgverify.engines.protocol import (
    Engine,
    Positions,
    ProbedEngine,
    Progress,
    StageOutputs,
    no_progress,
    split_positions,
)
from kgverify.errors import UserError
from kgverify.trace.model.columns import CandidateSet, Columns, concatenate
from kgverify.trace.model.header import EngineInfo

CHUNK: Final = 32
"""The number of candidates or positions of one task."""

_of_thread = threading.local()


class FannedOut:
    """An engine with the results of `make()`, in the same order, for any kind and number of workers.

    make:     makes an engine; it is pickled, sent to the workers, and called once in each of their threads
    executor: an executor of the standard library, or one with its interface; the caller shuts it down
    chunk:    the number of candidates or positions of one task
    share:    turns bytes into an argument that the executor delivers as the same bytes; for executors with a better way
              than sending them with every call

    An error in a worker is raised here, and tasks that have not begun are cancelled. UserError if a worker dies.
    """

    def __init__(
        self,
        make: Callable[[], ProbedEngine],
        executor: Executor,
        chunk: int = CHUNK,
        share: Callable[[bytes], Any] = bytes,
    ) -> None:
        if chunk < 1:
            raise ValueError(f"expected a chunk of 1 candidate or more, found {chunk}")
        self._here = make()
        self._executor = executor
        self._chunk = chunk
        pickled = zlib.compress(pickle.dumps(make), level=1)
        self._name = hashlib.sha256(pickled).hexdigest()
        self._make = share(pickled)

    def warm_up(self, num: int) -> None:
        """Let `num` workers make their engines, without waiting for them."""
        nothing = CandidateSet(np.zeros(0, np.int32), np.zeros(0, np.int8), np.zeros((0, 3), np.int32))
        for _ in range(num):
            self._executor.submit(_prove, self._make, self._name, nothing)

    @property
    def info(self) -> EngineInfo:
        """The description of the engine, which workers do not change."""
        return self._here.info

    def prove(self, candidates: CandidateSet, progress: Progress = no_progress) -> Columns:
        """Run every candidate to its end."""
        num = len(candidates.query)
        if not num:
            return self._here.prove(candidates, progress)
        parts = [candidates.take(slice(begin, begin + self._chunk)) for begin in range(0, num, self._chunk)]
        return self._gather(_prove, parts, progress)

    def step(self, positions: Positions) -> Columns:
        """Take one step from each position."""
        if not len(positions.depth):
            return self._here.step(positions)
        return self._gather(_step, split_positions(positions, self._chunk), no_progress)

    def probe(self, position: Positions) -> StageOutputs:
        """Return the output of each stage of one step, taken in this process."""
        return self._here.probe(position)

    def _gather(self, work: Callable[..., Columns], parts: Iterable[Any], progress: Progress) -> Columns:
        futures: list[Future[Columns]] = []
        try:
            futures += (self._executor.submit(work, self._make, self._name, part) for part in parts)
            for future in as_completed(futures):
                progress(len(future.result().candidates.query))
            return concatenate([future.result() for future in futures])
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
    return _engine(make, name).prove(candidates)


def _step(make: bytes, name: str, positions: Positions) -> Columns:
    return _engine(make, name).step(positions)


def _engine(make: bytes, name: str) -> Engine:
    """Return the engine of this thread, made once and kept until another is needed."""
    if getattr(_of_thread, "name", None) != name:
        _of_thread.engine = pickle.loads(zlib.decompress(make))()
        _of_thread.name = name
    engine: Engine = _of_thread.engine
    return engine
