"""The workers of a dask scheduler, of which any may be lost, and the scheduler restarted.

Every call that is sent is a function of its arguments alone. So it may run twice, and its first result is the result.
"""

import importlib
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Executor, Future
from contextlib import suppress
from functools import cache
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Final, TypeVar

from kgverify.errors import UserError, describe_error, find_missing_dependency
from kgverify.files.code_identity import Code, list_changes
from kgverify.runs.run import identify_code
from kgverify.runs.separate_workers import MOST_REPEATS
from kgverify.trace.model.header import EngineInfo

T = TypeVar("T")

WHERE: Final = "scheduler"
RECONNECT_SECONDS: Final = 300.0
"""The time that a scheduler may be gone before the work ends with an error."""
STRAGGLER_SECONDS: Final = 30.0
"""The least time without any result, when nothing is left to begin, after which calls are sent a second time."""
STRAGGLER_RATIO: Final = 3.0
"""The same time, in mean times of a call."""

_POLL_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 0.5
_ENCRYPTED: Final = ("tls", "wss", "inproc")
_LOOPBACK: Final = re.compile(r"(?:localhost|127(?:\.\d+){3}|\[?::1\]?)(?::\d+)?/?")


class DaskWorkers(Executor):
    """An executor whose calls run on the workers of a dask scheduler.

    A call is repeated if its worker or the scheduler is lost. A call that no worker survives raises UserError, and so does
    a scheduler that stays away for `RECONNECT_SECONDS`. Errors of a call itself are those of its future.

    engines: as given; they may be set before the first call
    """

    def __init__(self, address: str, engines: Sequence[str] = ()) -> None:
        """Connect. UserError for a scheduler that does not answer, or one elsewhere without encryption.

        engines: the names of the engines of third parties that calls run, whose code must be the same on the workers
        """
        self._address, self.engines = address, engines
        self._client = _connect(address)
        self._calls: set[_Call] = set()
        self._ended: SimpleQueue[tuple[_Call, Any]] = SimpleQueue()
        self._changing = threading.Lock()
        self._num_ended, self._is_closing = 0, False
        self._num_threads, self._counted = 1, 0.0
        self._last_end = self._began = time.monotonic()
        self._thread = threading.Thread(target=self._watch, name="kgverify-dask", daemon=True)
        self._thread.start()

    def submit(self, function: Callable[..., T], /, *arguments: object, **named: object) -> Future[T]:
        """Send a call. It is taken for granted that its function is pure."""
        call = _Call(function, arguments, named)
        call.future.add_done_callback(lambda future: self._forget(call))
        with self._changing:
            self._calls.add(call)
            self._send(call)
        return call.future

    def share(self, content: bytes) -> "SharedBytes":
        """Return an argument that stands for bytes. The scheduler keeps them, and workers copy them from one another."""
        return SharedBytes(content)

    def count_threads(self) -> int:
        """Return the calls that the present workers run at the same time, at least 1."""
        if time.monotonic() - self._counted > _POLL_SECONDS:
            with suppress(Exception):
                self._num_threads = max(1, sum(map(int, self._client.nthreads().values())))
            self._counted = time.monotonic()
        return self._num_threads

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the connection; calls without a result are cancelled."""
        self._is_closing = True
        for call in list(self._calls):
            call.future.cancel()
        self._thread.join()
        with suppress(Exception):
            self._client.close(timeout=2)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        self.shutdown()
        return None

    def _send(self, call: "_Call") -> None:
        client = self._client
        try:
            arguments = [self._keep(each) if isinstance(each, SharedBytes) else each for each in call.arguments]
            code = _identify(tuple(self.engines))
            sent = client.submit(_do, self.engines, code, call.function, call.named, *arguments, pure=False)
        except Exception:
            if client.status == "running":
                raise
            # `_watch` connects again, and sends every call that was not sent.
            return
        call.sent.append(sent)
        # A callback may run at once, and in this thread.
        sent.add_done_callback(lambda ended: self._ended.put((call, ended)))

    def _keep(self, shared: "SharedBytes") -> Any:
        """Return the bytes as dask knows them. They are a task of their own, which is repeated if its worker is lost."""
        if shared.client is not self._client or shared.kept.status in ("cancelled", "lost", "error"):
            shared.client, shared.kept = self._client, self._client.submit(bytes, shared.content, pure=False)
        return shared.kept

    def _watch(self) -> None:
        """Handle what ends until the executor is shut down."""
        while not self._is_closing:
            try:
                call, sent = self._ended.get(timeout=_POLL_SECONDS)
            except Empty:
                if self._client.status != "running":
                    self._reconnect()
                else:
                    self._send_stragglers_again()
                continue
            if call not in self._calls or sent not in call.sent:
                # It ended before, or was lost with an earlier connection.
                continue
            try:
                self._handle(call, sent)
            except Exception as error:  # the future must not wait forever
                self._finish(call, error=error)

    def _handle(self, call: "_Call", sent: Any) -> None:
        distributed = importlib.import_module("distributed")
        if sent.status == "finished":
            try:
                result = sent.result(timeout=RECONNECT_SECONDS)
            except Exception as error:
                if not _is_lost(error):
                    raise
                self._repeat(call, sent)
            else:
                self._finish(call, result)
        elif sent.status == "error":
            raised = sent.exception()
            if not isinstance(raised, distributed.scheduler.KilledWorker):
                self._finish(call, error=raised)
                return
            call.num_lost += 1 + getattr(raised, "allowed_failures", 0)
            if call.num_lost < MOST_REPEATS:
                self._repeat(call, sent)
            else:
                self._finish(
                    call,
                    error=UserError(
                        f"{call.num_lost} times, workers died before their work was done ({describe_error(raised)})",
                        where=WHERE,
                        fix="read the log of a worker: it may need more memory, or an engine may end its process",
                    ),
                )
        else:
            self._repeat(call, sent)

    def _finish(self, call: "_Call", result: Any = None, error: BaseException | None = None) -> None:
        self._num_ended += 1
        self._last_end = time.monotonic()
        if not call.future.set_running_or_notify_cancel():
            return
        if error is None:
            call.future.set_result(result)
        else:
            call.future.set_exception(error)

    def _forget(self, call: "_Call") -> None:
        """Let the scheduler forget a call that has ended or was cancelled, and workers not begin it."""
        self._calls.discard(call)
        sent, call.sent = call.sent, []
        for each in sent:
            each.release()

    def _repeat(self, call: "_Call", sent: Any) -> None:
        """Send a call again, over another connection if this one is lost."""
        call.sent.remove(sent)
        if self._client.status != "running":
            self._reconnect()
        elif not call.sent:
            with self._changing:
                self._send(call)

    def _reconnect(self) -> None:
        """Connect again, and send every call that has no result."""
        before, deadline = self._client, time.monotonic() + RECONNECT_SECONDS
        with suppress(Exception):
            before.close(timeout=1)
        while not self._is_closing:
            try:
                client = _connect(self._address)
                break
            except UserError as error:
                if time.monotonic() > deadline:
                    for call in list(self._calls):
                        self._finish(call, error=error)
                    return
                time.sleep(_RETRY_SECONDS)
        else:
            return
        with self._changing:
            self._client = client
            for call in list(self._calls):
                call.sent.clear()
                self._send(call)

    def _send_stragglers_again(self) -> None:
        """Send a second copy of each call that runs much longer than the others did, once nothing else is left to begin."""
        now = time.monotonic()
        num = self.count_threads()
        if not self._calls or len(self._calls) > num or not self._num_ended:
            return
        mean = (self._last_end - self._began) * num / self._num_ended
        if now - self._last_end < max(STRAGGLER_SECONDS, STRAGGLER_RATIO * mean):
            return
        with self._changing:
            for call in list(self._calls):
                if len(call.sent) == 1:
                    self._send(call)


class SharedBytes:
    """Bytes that many calls take as an argument."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.client: Any = None
        self.kept: Any = None


class _Call:
    """A call without a result.

    sent:     what dask knows of it: two where a straggler was sent again
    num_lost: the workers that died until dask gave it up, each time that dask did
    """

    def __init__(self, function: Callable[..., Any], arguments: tuple[object, ...], named: dict[str, object]) -> None:
        self.function, self.arguments, self.named = function, arguments, named
        self.future: Future[Any] = Future()
        self.sent: list[Any] = []
        self.num_lost = 0


def _do(
    engines: Sequence[str], code: Code, function: Callable[..., T], named: dict[str, object], *arguments: object
) -> T:
    """Do a call on a worker. UserError if the worker has other code than the process that sent it."""
    here = identify_code(engines)
    if changes := list_changes(code, here, changed_only=True):
        import socket

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


def _is_lost(error: Exception) -> bool:
    """Return whether an error means that a result was lost on the way, rather than that its call failed."""
    distributed = importlib.import_module("distributed")
    return isinstance(error, (CancelledError, OSError, TimeoutError, distributed.comm.core.CommClosedError))
