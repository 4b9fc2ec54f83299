"""Engines whose candidates are proved by many workers in parallel: processes, or machines."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kgverify.engines.protocol import Positions, ProbedEngine, StageOutputs, split_positions
from kgverify.progress import Progress, no_progress
from kgverify.runs.dask_workers import DaskWorkers, check_same_engine
from kgverify.runs.pool import Processes, Workers, do_all, make_once, send_maker
from kgverify.runs.run import Pipeline, Run, reference_pipeline, reference_triples, with_reference_ranking
from kgverify.trace.model.columns import CandidateSet, Columns, concatenate
from kgverify.trace.model.header import EngineInfo
from kgverify.trace.model.schema import TraceLevel

CHUNK: Final = 32
"""The number of candidates or positions of one call."""
CHUNKS_AHEAD: Final = 4
"""Calls sent for each worker, so that none waits for the next one."""
CHUNKS_READ: Final = 16
"""Calls whose results are recorded at once."""

_MOST_BESIDE: Final = 16
"""The most processes that wait beside other work. Each holds the program in its memory."""

_NUM_OF_PROCESS: Final = 1024
"""The candidates for which a further process is worth its start."""

_NUM_OF_COSTLY: Final = 96
"""The same for a network with more than `_WIDE` weights, or for more than `_LARGE` facts, of which more match at each step."""

_WIDE: Final = 100_000

_LARGE: Final = 100_000


class FannedOut:
    """An engine with the results of `make()`, in the same order, for any kind and number of workers.

    make:  makes an engine; it is pickled, sent to the workers, and called once in each of their threads
    chunk: the number of candidates or positions of one call

    An error in a worker is raised here, and calls that have not begun are cancelled. UserError as by `Calls.take`.
    """

    def __init__(self, make: Callable[[], ProbedEngine], workers: Workers, chunk: int = CHUNK) -> None:
        if chunk < 1:
            raise ValueError(f"expected a chunk of 1 candidate or more, found {chunk}")
        self._here, self._workers, self._chunk = make(), workers, chunk
        self._made = send_maker(make, workers)

    def warm_up(self) -> None:
        """Let the workers make their engines, without waiting for them."""
        nothing = CandidateSet(np.zeros(0, np.int32), np.zeros(0, np.int8), np.zeros((0, 3), np.int32))
        for _ in range(self._workers.count()):
            self._workers.submit(_call, *self._made, "prove", nothing)

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
        yield from map(_Recorded, self._call_in_order("prove", self._split(candidates), progress, is_limited=True))

    def prove(self, candidates: CandidateSet, progress: Progress = no_progress) -> Columns:
        """Run every candidate to its end."""
        if not len(candidates.query):
            return self._here.prove(candidates, progress)
        return concatenate([*self._call_in_order("prove", self._split(candidates), progress)])

    def step(self, positions: Positions) -> Columns:
        """Take one step from each position."""
        if not len(positions.depth):
            return self._here.step(positions)
        return concatenate([*self._call_in_order("step", [*split_positions(positions, self._chunk)], no_progress)])

    def probe(self, position: Positions) -> StageOutputs:
        """Return the output of each stage of one step, taken in this process."""
        return self._here.probe(position)

    def _split(self, candidates: CandidateSet) -> list[CandidateSet]:
        num = len(candidates.query)
        return [candidates.take(slice(begin, begin + self._chunk)) for begin in range(0, num, self._chunk)]

    def _call_in_order(
        self, method: str, parts: Sequence[Any], progress: Progress, *, is_limited: bool = False
    ) -> Iterator[Columns]:
        """Call a method with each part, and yield the results in their order, several at once.

        is_limited: whether calls wait until earlier results are taken
        """
        calls = ((number, _call, (*self._made, method, part)) for number, part in enumerate(parts))
        found: dict[int, Columns] = {}

        def count_room() -> int:
            return max(CHUNKS_READ, CHUNKS_AHEAD * self._workers.count()) - len(found)

        num_read = 0
        for number, columns in filter(None, do_all(self._workers, calls, count_room if is_limited else None)):
            found[number] = columns
            progress(len(columns.candidates.query))
            while (block := range(num_read, min(num_read + CHUNKS_READ, len(parts)))) and {*block} <= found.keys():
                yield concatenate([found.pop(each) for each in block])
                num_read = block.stop


class _Recorded:
    """Candidates that workers proved."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def read(self) -> tuple[Columns, NDArray[np.uint64] | None]:
        """Return them; their digests are taken where they are recorded."""
        return self._columns, None


def _call(make: bytes, name: str, method: str, given: Any) -> Columns:
    columns: Columns = getattr(make_once(make, name), method)(given)
    return columns


@contextmanager
def reference_over(run: Run, *, jobs: int = 1, scheduler: str | None = None) -> Iterator[Pipeline]:
    """Provide the reference's pipeline until the context ends; its traces are the same wherever it runs.

    jobs:      processes on this machine; 1 means this process
    scheduler: the address of a dask scheduler, used instead of `jobs`; its workers need kgverify installed

    UserError as for `DaskWorkers`.
    """
    if scheduler is None and jobs < 2:
        yield reference_pipeline(run)
        return
    from kgverify.engines.reference.engine import ReferenceEngine

    make = partial(ReferenceEngine, run.graph.program, run.limits, run.policy, triples=reference_triples(run))
    with Processes(jobs) if scheduler is None else DaskWorkers(scheduler) as workers:
        yield with_reference_ranking(FannedOut(make, workers))


@contextmanager
def reference_beside(run: Run, num: int) -> Iterator[Pipeline]:
    """Provide the reference's pipeline to prove `num` candidates after other work.

    Its processes start at once, if they save time and there are cores left.
    """
    num_weights = sum(array.size for name, array in run.policy.weights.items() if name.startswith("block."))
    is_costly = num_weights > _WIDE or len(run.graph.program.facts) > _LARGE
    worth = _NUM_OF_COSTLY if is_costly else _NUM_OF_PROCESS
    jobs = min(_MOST_BESIDE, len(os.sched_getaffinity(0)) - 1, (num - 1) // worth)
    with reference_over(run, jobs=jobs) as pipeline:
        if isinstance(pipeline.engine, FannedOut):
            pipeline.engine.warm_up()
        yield pipeline


@contextmanager
def pipeline_over(scheduler: str, make: Callable[[], Pipeline]) -> Iterator[Pipeline]:
    """Provide a pipeline whose engine proves on the workers of a dask scheduler until the context ends.

    make: makes the pipeline, here and on the workers; it can be pickled

    UserError as for `DaskWorkers`.
    """
    with DaskWorkers(scheduler) as workers:
        here = make()
        workers.engines, info = here.engines, here.engine.info
        # An engine with slots proves them in batches, which should be full.
        chunk = max(CHUNK, info.layout.get("slots", 0))
        yield here._replace(engine=FannedOut(partial(_make_same_engine, make, info), workers, chunk))


def _make_same_engine(make: Callable[[], Pipeline], info: EngineInfo) -> Any:
    engine = make().engine
    check_same_engine(engine.info, info)
    return engine
