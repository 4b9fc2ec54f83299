"""Ctrl-C and SIGTERM, distinguished from a KeyboardInterrupt that an engine raises; and the end of the time for some work."""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from math import inf
from types import FrameType
from typing import Final

SAME_PRESS: Final = 0.2
"""The seconds within which a second signal counts as the first: `kill` to a process group may deliver it twice."""

_ENDING: Final = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""The signals other than Ctrl-C that ask the process to end."""

SHORTEST: Final = 1e-3
"""The shortest time of a timer, in seconds; 0 would disarm it."""

_pressed: float | None = None
"""The time of the last Ctrl-C, or of another signal that asks the process to end."""
_number: int = signal.SIGINT
"""The number of that signal."""
_is_lost: bool = False
"""True if Python dropped its exception, and it was not raised again yet."""
_is_watched: bool = False
"""True if every Ctrl-C is noted, so that any other KeyboardInterrupt comes from an engine."""


class Ended(KeyboardInterrupt):
    """A signal other than Ctrl-C that asks the process to end. What is finished is kept; work in progress is not finished."""


class OutOfTime(BaseException):
    """The time for some work is over. Like a Ctrl-C, it is no mistake of the engine that it interrupts."""


def is_interrupt(error: BaseException) -> bool:
    """Return whether an exception is a Ctrl-C, or the end of the time. Without a watch, every KeyboardInterrupt is a Ctrl-C."""
    is_pressed_now = isinstance(error, KeyboardInterrupt) and (not _is_watched or _pressed is not None)
    return is_pressed_now or isinstance(error, OutOfTime)


@contextmanager
def stop_after(seconds: float) -> Iterator[None]:
    """Raise OutOfTime after some seconds, in the main thread between two instructions of Python.

    Nothing interrupts another thread, or native code until it returns. A timer that ends before, such as that of
    pytest-timeout, stays as it is.
    """
    is_main = threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")
    before, interval = signal.getitimer(signal.ITIMER_REAL) if is_main else (0.0, 0.0)
    if not is_main or seconds == inf or 0 < before <= seconds:
        yield
        return
    begun, handler = time.monotonic(), signal.signal(signal.SIGALRM, _raise_out_of_time)
    # Raise it repeatedly, since an engine may catch the exception.
    signal.setitimer(signal.ITIMER_REAL, max(seconds, SHORTEST), 1.0)
    try:
        with _deliver_lost():
            yield
    finally:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)
        finally:
            signal.signal(signal.SIGALRM, handler or signal.SIG_DFL)
            if before:
                signal.setitimer(signal.ITIMER_REAL, max(before - (time.monotonic() - begun), SHORTEST), interval)


def _raise_out_of_time(number: int, frame: FrameType | None) -> None:
    raise OutOfTime


def find_interrupt() -> int | None:
    """Return the number of the last signal that asked the process to end since the watch began; None without one."""
    return None if _pressed is None else _number


def note_interrupt(number: int) -> None:
    """Note a Ctrl-C, or another signal that raises KeyboardInterrupt, in a handler other than the watch's own."""
    global _pressed, _number
    _pressed, _number = time.monotonic(), number


def expect_no_interrupt() -> None:
    """Attribute every KeyboardInterrupt to an engine, in a process that ignores Ctrl-C."""
    global _is_watched
    _is_watched = True


@contextmanager
def watch_interrupts() -> Iterator[None]:
    """Note every Ctrl-C, SIGTERM and SIGHUP until the context ends; only in the main thread, and unless other code handles it.

    If Ctrl-C is ignored, as for a background process of a script, every KeyboardInterrupt comes from an engine.
    """
    global _is_watched, _pressed
    handler = signal.getsignal(signal.SIGINT)
    is_usual = handler is signal.default_int_handler and threading.current_thread() is threading.main_thread()
    if not is_usual and handler is not signal.SIG_IGN:
        yield
        return
    before = _is_watched, _pressed
    _is_watched, _pressed = True, None
    try:
        with handle_signals((signal.SIGINT, *_ENDING), _raise_interrupt), _deliver_lost():
            yield
    finally:
        _is_watched, _pressed = before


@contextmanager
def _deliver_lost() -> Iterator[None]:
    """Raise an exception of this module again if Python dropped it, as in `__del__` and in callbacks of weak references."""
    usual, ended = sys.unraisablehook, threading.Event()

    def send(ready: threading.Event) -> None:
        # A signal that arrived while Python still ran `deliver` would be dropped again.
        ready.wait()
        if not ended.wait(20 * SHORTEST):
            signal.pthread_kill(threading.main_thread().ident or 0, _number)

    def deliver(lost: "sys.UnraisableHookArgs") -> None:
        global _pressed, _is_lost
        if issubclass(lost.exc_type, OutOfTime):
            signal.setitimer(signal.ITIMER_REAL, SHORTEST, 1.0)
        elif issubclass(lost.exc_type, KeyboardInterrupt) and _pressed is not None:
            _pressed, _is_lost = None, True
            ready = threading.Event()
            threading.Thread(target=send, args=(ready,), daemon=True).start()
            ready.set()
        else:
            usual(lost)

    sys.unraisablehook = deliver
    try:
        yield
    finally:
        sys.unraisablehook = usual
        ended.set()


@contextmanager
def handle_signals(numbers: Iterable[int], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle signals until the context ends; only in the main thread. Ignored signals, as under nohup, stay ignored."""
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in numbers if is_main}
    for number, usual in before.items():
        if usual is not signal.SIG_IGN:
            signal.signal(number, handler)
    try:
        yield
    finally:
        for number, usual in before.items():
            signal.signal(number, usual or signal.SIG_DFL)


def raise_lost() -> None:
    """Raise the exception of a signal that Python dropped right before the work ended."""
    if _is_lost:
        _raise_interrupt(_number, None)


def _raise_interrupt(number: int, frame: FrameType | None) -> None:
    global _is_lost
    last, _is_lost = _pressed, False
    note_interrupt(number)
    if last is None or time.monotonic() - last > SAME_PRESS:
        raise KeyboardInterrupt if number == signal.SIGINT else Ended
