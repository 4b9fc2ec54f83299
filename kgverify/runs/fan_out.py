"""Engines whose candidates are proved by many workers in parallel: processes, or the workers of a dask scheduler.

Workers of a scheduler may be lost, and the scheduler may be restarted.
"""

import importlib
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from functools import cache, partial
from types import TracebackType
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from kgverify.engines.protocol import Positions, ProbedEngine, StageOutputs, split_positions
from kgverify.errors import UserError, describe_error, find_missing_dependency
from kgverify.files.code_identity import Code, list_changes
from kgverify.progress import Progress, no_progress
from kgverify.runs.pool import Processes, WorkerLost, Workers, do_all, make_once, send_maker
from kgverify.runs.run import (
    Pipeline,
    Run,
    identify_code,
    reference_pipeline,
    reference_triples,
    with_reference_ranking,
)
from kgverify.threads import count_threads
from kgverify.trace.model.columns import CandidateSet, Columns, concatenate
from kgverify.trace.model.header import EngineInfo
from kgverify.trace.model.schema import TraceLevel

T = TypeVar("T")

WHERE: Final = "scheduler"
RECONNECT_SECONDS: Final = 300.0
"""The time that a scheduler may be unreachable before the work ends with an error."""

_POLL_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 0.5
_ENCRYPTED: Final = ("tls", "wss", "inproc")
_LOOPBACK: Final = re.compile(r"(?:localhost|127(?:\.\d+){3}|\[?::1\]?)(?::\d+)?/?")


class DaskWorkers(Workers):
    """The workers of a dask scheduler.

    A call is lost if dask gives it up or the scheduler is restarted. UserError if the scheduler is unreachable for
    `RECONNECT_SECONDS`. An error raised by a call is stored in its future.

    engines: the third-party engines, which may be set until the first call
    """

    def __init__(self, address: str, engines: Sequence[str] = ()) -> None:
        """Connect. UserError if the scheduler does not answer, or is on another machine without encryption.

        engines: the names of the third-party engines that calls run; their code must be the same on the workers
        """
        self._address, self.engines = address, engines
        self._client = _connect(address)
        self._num_threads, self._counted = 1, 0.0

    def submit(self, function: Callable[..., T], /, *arguments: object, **named: object) -> Future[T]:
        """Send a call, over a new connection if this one is lost. UserError if the scheduler stays unreachable."""
        future: Future[T] = Future()
        while True:
            if self._client.status != "running":
                self._reconnect()
            client = self._client
            try:
                kept = [each.keep(client) if isinstance(each, SharedBytes) else each for each in arguments]
                code = _identify(tuple(self.engines))
                sent = client.submit(_do, self.engines, code, function, named, *kept, pure=False)
                break
            except Exception:
                if client.status == "running":
                    raise
        # The scheduler forgets a call that ended or was cancelled, and workers do not begin it.
        future.add_done_callback(lambda _: sent.release())
        sent.add_done_callback(lambda _: _settle(sent, future))
        return future

    def share(self, content: bytes) -> "SharedBytes":
        """Return an argument that stands for bytes. The scheduler stores the bytes, and workers copy them from each other."""
        return SharedBytes(content)

    def count(self) -> int:
        """Return the number of calls that the present workers run at the same time, at least 1."""
        if time.monotonic() - self._counted > _POLL_SECONDS:
            with suppress(Exception):
                self._num_threads = max(1, sum(map(int, self._client.nthreads().values())))
            self._counted = time.monotonic()
        return self._num_threads

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        """Close the connection."""
        with suppress(Exception):
            self._client.close(timeout=2)
        return None

    def _reconnect(self) -> None:
        """Connect again. UserError if no scheduler answers for a long time."""
        deadline = time.monotonic() + RECONNECT_SECONDS
        with suppress(Exception):
            self._client.close(timeout=1)
        while True:
            try:
                self._client = _connect(self._address)
                return
            except UserError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_RETRY_SECONDS)


class SharedBytes:
    """Bytes that are an argument of many calls."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._client: Any = None
        self._kept: Any = None

    def keep(self, client: Any) -> Any:
        """Return a dask future for the bytes. They are a separate task, which is repeated if its worker is lost."""
        if client is not self._client or self._kept.status in ("cancelled", "lost", "error"):
            self._client, self._kept = client, client.submit(bytes, self._content, pure=False)
        return self._kept


def _settle(sent: Any, future: Future[Any]) -> None:
    """Set a future to the result or error that dask reports for a finished call."""
    distributed = importlib.import_module("distributed")
    if not future.set_running_or_notify_cancel():
        return
    losses: tuple[type[BaseException], ...] = (distributed.scheduler.KilledWorker,)
    try:
        error = sent.exception() if sent.status == "error" else None
        if error is None:
            future.set_result(sent.result(timeout=RECONNECT_SECONDS))
            return
    except Exception as raised:
        # The call was cancelled with the connection, or its result was lost in transit.
        losses = (CancelledError, OSError, TimeoutError, distributed.comm.core.CommClosedError)
        error = raised
    if isinstance(error, losses):
        error = WorkerLost(
            describe_error(error),
            weight=1 + error.allowed_failures if isinstance(error, distributed.scheduler.KilledWorker) else 0,
            where=WHERE,
            fix="read the log of a worker: it may need more memory, or an engine may end its process",
        )
    future.set_exception(error)


def _do(
    engines: Sequence[str], code: Code, function: Callable[..., T], named: dict[str, object], *arguments: object
) -> T:
    """Do a call on a worker. UserError if the worker's code differs from that of the process that sent the call."""
    here = identify_code(engines)
    if changes := list_changes(code, here, changed_only=True):
        raise UserError(
            f"the worker on {socket.gethostname()} has other code: {'; '.join(changes.values())}",
            where=WHERE,
            fix="install the same versions on this machine and on every worker, and restart the workers",
        )
    return function(*arguments, **named)


@cache
def _identify(engines: tuple[str, ...]) -> Code:
    """Return the identity of the code of this process, which does not change after it was imported."""
    return identify_code(engines)


def check_same_engine(found: EngineInfo, expected: EngineInfo) -> None:
    """Raise UserError if a worker's engine is not the one that the command described, since results would be mixed."""
    for name in ("name", "mode", "device", "precision", "faults", "versions"):
        there, here = getattr(found, name), getattr(expected, name)
        if there != here:
            raise UserError(
                f"the engine's {name} is {there} on a worker, and {here} where the command was started",
                where=WHERE,
                fix="install the same versions on all machines, and give --device and --mode",
            )


def check_address(address: str) -> None:
    """Raise UserError for an address whose traffic others on the network could read.

    Anyone who can read a client's connection can run code on the client and on the workers.
    """
    protocol, separator, rest = address.strip().rpartition("://")
    if not rest or (separator and not protocol):
        raise UserError(
            f"expected the address of a scheduler, found {address!r}",
            where=WHERE,
            fix="give the address that `dask scheduler` prints, such as tls://10.0.0.1:8786",
        )
    if protocol in _ENCRYPTED or _LOOPBACK.fullmatch(rest):
        return
    dask = importlib.import_module("dask")
    if dask.config.get("distributed.comm.require-encryption", None) is False:
        return
    raise UserError(
        f"the connection to {address!r} is not encrypted, and anybody who reaches it can run code here",
        where=WHERE,
        fix="start the scheduler with TLS and give its tls:// address (docs/evaluating.md); for a network that you trust,"
        " set DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION=False",
    )


def _connect(address: str) -> Any:
    try:
        distributed = importlib.import_module("distributed")
    except ImportError as error:
        raise find_missing_dependency(error, where=WHERE) or error from error
    check_address(address)
    try:
        # The user's own code may use another client in this process.
        return distributed.Client(address, set_as_default=False, name="kgverify")
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        raise UserError(
            f"no scheduler answers at {address!r} ({describe_error(error)})",
            where=WHERE,
            fix="start one with `dask scheduler`, and give the address that it prints; one with TLS needs the"
            " certificates in dask's configuration",
        ) from error


CHUNK: Final = 32
"""The number of candidates or positions in one call."""
CHUNKS_AHEAD: Final = 4
"""The calls sent ahead for each worker, so that no worker waits for its next call."""
CHUNKS_READ: Final = 16
"""The number of calls whose results are recorded at once."""

_MOST_BESIDE: Final = 16
"""The maximum number of processes that wait while other work runs. Each has the program in its memory."""

_NUM_OF_PROCESS: Final = 1024
"""The number of candidates that justifies starting another process."""

_NUM_OF_COSTLY: Final = 96
"""The same number for a network with more than `_WIDE` weights, or for more than `_LARGE` facts, which make steps slower."""

_WIDE: Final = 100_000

_LARGE: Final = 100_000


class FannedOut:
    """An engine with the same results as that of `make()`, in the same order, for any kind and number of workers.

    make:  makes an engine; it is pickled, sent to the workers, and called once in each of their threads
    chunk: the number of candidates or positions in one call

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
        """The description of the engine, which is the same on the workers."""
        return self._here.info

    @property
    def proves_ahead(self) -> bool:
        """True: workers prove the next candidates while others are recorded."""
        return True

    def record(
        self, candidates: CandidateSet, progress: Progress = no_progress, *, level: TraceLevel = TraceLevel.STEPS
    ) -> Iterator["_Recorded"]:
        """Run every candidate to its end, and yield the candidates in the given order."""
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
        """Call a method with each part, and yield the results in the order of the parts, several at once.

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
        """Return the columns; the digests are computed where the candidates are recorded."""
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


def choose_jobs(run: Run, num: int, num_cores: int) -> int:
    """Return the number of processes in which the reference proves `num` candidates: what saves time, at most one a core."""
    if run.policy.scorer is not None:
        return 1
    num_weights = sum(array.size for name, array in run.policy.weights.items() if name.startswith("block."))
    is_costly = num_weights > _WIDE or len(run.graph.program.facts) > _LARGE
    return max(1, min(_MOST_BESIDE, num_cores, (num - 1) // (_NUM_OF_COSTLY if is_costly else _NUM_OF_PROCESS)))


@contextmanager
def reference_beside(run: Run, num: int) -> Iterator[Pipeline]:
    """Provide the reference's pipeline to prove `num` candidates after other work.

    Its processes start immediately if they save time and cores are free.
    """
    with reference_over(run, jobs=choose_jobs(run, num, count_threads() - 1)) as pipeline:
        if isinstance(pipeline.engine, FannedOut):
            pipeline.engine.warm_up()
        yield pipeline


@contextmanager
def pipeline_over(scheduler: str, make: Callable[[], Pipeline]) -> Iterator[Pipeline]:
    """Provide a pipeline whose engine proves on the workers of a dask scheduler until the context ends.

    make: makes the pipeline, here and on the workers; it must be picklable

    UserError as for `DaskWorkers`.
    """
    with DaskWorkers(scheduler) as workers:
        here = make()
        workers.engines, info = here.engines, here.engine.info
        # An engine with slots proves candidates in batches, which should be full.
        chunk = max(CHUNK, info.layout.get("slots", 0))
        yield here._replace(engine=FannedOut(partial(_make_same_engine, make, info), workers, chunk))


def _make_same_engine(make: Callable[[], Pipeline], info: EngineInfo) -> Any:
    engine = make().engine
    check_same_engine(engine.info, info)
    return engine
