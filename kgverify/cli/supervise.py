"""A small process that waits for the command, so that an engine that ends the command's process cannot fake a verdict.

`os._exit(0)`, `exec`, or `exit` in native code leave Python without a trace, so only another process can notice them. It
starts before anything is imported, within about a millisecond.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

BAD_INPUT: Final = 2
INTERRUPTED: Final = 130
SECONDS_TO_END: Final = 10.0
"""The time limit for a process to end after its verdict, since threads of an engine may never end."""

_PASSED_ON: Final = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)
)
_SENT_BY_TERMINAL: Final = 0x80
"""The `si_code` of a signal from the terminal, which the other process also received."""
_PR_SET_PDEATHSIG: Final = 1


def may_run_foreign_code(words: Sequence[str]) -> bool:
    """Return whether a command may run a third-party engine, which is named with a colon or by a trusted file."""
    return any(":" in word or word == "--trust" for word in words)


def supervise(command: Callable[[], int]) -> int:
    """Run a command in a separate process, and return its exit code. If it reports none, explain how the process ended.

    On systems without `fork` and `sigtimedwait` the command runs in this process.
    """
    if not hasattr(os, "fork") or not hasattr(signal, "sigtimedwait"):
        return command()
    reading, writing = os.pipe()
    # Signals wait until they can be handled.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*_PASSED_ON, signal.SIGCHLD})
    parent, child = os.getpid(), os.fork()
    if child:
        os.close(writing)
        return _wait_for(child, reading)
    os.close(reading)
    own = os.getpid()
    _end_with(parent)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    code = command()
    if os.getpid() != own:
        # An engine forked; only one process may report.
        os._exit(BAD_INPUT)
    os.write(writing, bytes([code]))
    return code


def _end_with(parent: int) -> None:
    """Make the kernel end this process when its parent is killed; if it cannot, this process continues by itself."""
    with suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(BAD_INPUT)


def _wait_for(child: int, reading: int) -> int:
    """Pass signals on to the child until it ends. Return the exit code that it reported, or one that says why it did not."""
    os.set_blocking(reading, False)
    reported, deadline, is_interrupted = b"", float("inf"), False
    while True:
        received = signal.sigtimedwait({*_PASSED_ON, signal.SIGCHLD}, 1.0)
        if received is not None and received.si_signo != signal.SIGCHLD:
            is_interrupted |= received.si_signo == signal.SIGINT
            if received.si_code != _SENT_BY_TERMINAL:
                os.kill(child, received.si_signo)
            continue
        ended, status = os.waitpid(child, os.WNOHANG)
        with suppress(BlockingIOError):
            reported = reported or os.read(reading, 1)
        if ended:
            return reported[0] if reported else _explain(os.waitstatus_to_exitcode(status), is_interrupted)
        if reported:
            deadline = min(deadline, time.monotonic() + SECONDS_TO_END)
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)


def _explain(code: int, is_interrupted: bool) -> int:
    """Print how a process ended without a verdict, and return the exit code."""
    if is_interrupted and code == INTERRUPTED:
        # It was importing, and has already reported the interrupt.
        return code
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        print(f"error: ended by {name} before there was a verdict", file=sys.stderr)  # noqa: T201  its own words alone
        return 128 - code
    print(  # noqa: T201  its own words alone
        f"error: an engine ended the process with exit code {code} before there was a verdict\n"
        "fix: repair the engine: it must neither exit nor replace the process",
        file=sys.stderr,
    )
    return BAD_INPUT
