"""The workers of a dask scheduler. Workers may be lost, and the scheduler may be restarted."""

import importlib
import re
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import cache
from types import TracebackType
from typing import Any, Final, TypeVar

from kgverify.errors import UserError, describe_error, find_missing_dependency
from kgverify.files.code_identity import Code, list_changes
from kgverify.runs.pool import WorkerLost, Workers
from kgverify.runs.run import identify_code
from kgverify.trace.model.header import EngineInfo

T = TypeVar("T")

WHERE: Final = "scheduler"
RECONNECT_SECONDS: Final = 300.0
"""The time that a scheduler may be gone before the work ends with an error."""

_POLL_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 0.5
_ENCRYPTED: Final = ("tls", "wss", "inproc")
_LOOPBACK: Final = re.compile(r"(?:localhost|127(?:\.\d+){3}|\[?::1\]?)(?::\d+)?/?")


class DaskWorkers(Workers):
    """The workers of a dask scheduler.

    A call is lost if dask gives it up, or the scheduler is restarted. A scheduler that stays away for `RECONNECT_SECONDS` is a
    UserError. Errors of a call itself are those of its future.

    engines: as given; they may be set before the first call
    """

    repeats_slow = True

    def __init__(self, address: str, engines: Sequence[str] = ()) -> None:
        """Connect. UserError for a scheduler that does not answer, or one elsewhere without encryption.

        engines: the names of the engines of third parties that calls run, whose code must be the same on the workers
        """
        self._address, self.engines = address, engines
        self._client = _connect(address)
        self._num_threads, self._counted = 1, 0.0

    def submit(self, function: Callable[..., T], /, *arguments: object, **named: object) -> Future[T]:
        """Send a call, over another connection if this one is lost. UserError if the scheduler stays away."""
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
        # The scheduler forgets a call that has ended or was cancelled, and workers do not begin it.
        future.add_done_callback(lambda _: sent.release())
        sent.add_done_callback(lambda _: _settle(sent, future))
        return future

    def share(self, content: bytes) -> "SharedBytes":
        """Return an argument that stands for bytes. The scheduler keeps them, and workers copy them from one another."""
        return SharedBytes(content)

    def count(self) -> int:
        """Return the calls that the present workers run at the same time, at least 1."""
        if time.monotonic() - self._counted > _POLL_SECONDS:
            with suppress(Exception):
                self._num_threads = max(1, sum(map(int, self._client.nthreads().values())))
            self._counted = time.monotonic()
        return self._num_threads

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        """End the connection."""
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
    """Bytes that many calls take as an argument."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._client: Any = None
        self._kept: Any = None

    def keep(self, client: Any) -> Any:
        """Return the bytes as dask knows them. They are a task of their own, which is repeated if its worker is lost."""
        if client is not self._client or self._kept.status in ("cancelled", "lost", "error"):
            self._client, self._kept = client, client.submit(bytes, self._content, pure=False)
        return self._kept


def _settle(sent: Any, future: Future[Any]) -> None:
    """Give a future what dask says about a call that ended."""
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
        # The call was cancelled with the connection, or its result was lost on the way.
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
    """Do a call on a worker. UserError if the worker has other code than the process that sent it."""
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
    """Return the identity of the code that this process sends: what it imported does not change."""
    return identify_code(engines)


def check_same_engine(found: EngineInfo, expected: EngineInfo) -> None:
    """Raise UserError if a worker's engine is not the one that the command described: results would be mixed."""
    for name in ("name", "mode", "device", "precision", "faults", "versions"):
        there, here = getattr(found, name), getattr(expected, name)
        if there != here:
            raise UserError(
                f"the engine's {name} is {there} on a worker, and {here} where the command was started",
                where=WHERE,
                fix="install the same versions on all machines, and give --device and --mode",
            )


def check_address(address: str) -> None:
    """Raise UserError for an address that others on the network could listen to.

    Whoever reads the connection of a client can run code on it and on the workers.
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
        fix="start the scheduler with TLS and give its tls:// address (docs/machines.md); for a network that you trust,"
        " set DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION=False",
    )


def _connect(address: str) -> Any:
    try:
        distributed = importlib.import_module("distributed")
    except ImportError as error:
        raise find_missing_dependency(error, where=WHERE) or error from error
    check_address(address)
    try:
        # Another client of this process may be the one that the user's own code talks to.
        return distributed.Client(address, set_as_default=False, name="kgverify")
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        raise UserError(
            f"no scheduler answers at {address!r} ({describe_error(error)})",
            where=WHERE,
            fix="start one with `dask scheduler`, and give the address that it prints; one with TLS needs the"
            " certificates in dask's configuration",
        ) from error
