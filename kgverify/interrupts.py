"""Ctrl-C, told apart from a KeyboardInterrupt that an engine raises."""

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

SAME_PRESS: Final = 0.2
"""Seconds in which a second SIGINT counts as the first: `kill` to a group of processes may deliver it twice."""

_pressed: float | None = None
"""The time of the last Ctrl-C."""
_is_watched: bool = False
"""True where every Ctrl-C is noted, so that another KeyboardInterrupt is an engine's."""


def is_interrupt(error: BaseException) -> bool:
    """Return whether an exception is a Ctrl-C; where nobody watches, every KeyboardInterrupt counts as one."""
    return isinstance(error, KeyboardInterrupt) and (not _is_watched or _pressed is not None)


def is_pressed() -> bool:
    """Return whether Ctrl-C was pressed since the watch began."""
    return _pressed is not None


def note_interrupt() -> None:
    """Note a Ctrl-C, or another signal that raises KeyboardInterrupt, in a handler other than that of the watch."""
    global _pressed
    _pressed = time.monotonic()


def expect_no_interrupt() -> None:
    """Take every KeyboardInterrupt for an engine's, in a process that ignores Ctrl-C."""
    global _is_watched
    _is_watched = True


@contextmanager
def watch_interrupts() -> Iterator[None]:
    """Note every Ctrl-C until the context ends; in the main thread, and unless it is handled otherwise.

    Where it is ignored, as in the background of a script, every KeyboardInterrupt is an engine's.
    """
    global _is_watched, _pressed
    handler = signal.getsignal(signal.SIGINT)
    is_usual = handler is signal.default_int_handler and threading.current_thread() is threading.main_thread()
    if not is_usual and handler is not signal.SIG_IGN:
        yield
        return
    before = _is_watched, _pressed
    _is_watched, _pressed = True, None
    if is_usual:
        signal.signal(signal.SIGINT, _raise_interrupt)
    try:
        yield
    finally:
        if is_usual:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        _is_watched, _pressed = before


@contextmanager
def handle_signals(numbers: Iterable[int], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle signals until the context ends; in the main thread only. Ignored signals, as under nohup, stay ignored."""
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


def _raise_interrupt(number: int, frame: FrameType | None) -> None:
    last = _pressed
    note_interrupt()
    if last is None or time.monotonic() - last > SAME_PRESS:
        raise KeyboardInterrupt
