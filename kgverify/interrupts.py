"""Ctrl-C, distinguished from a KeyboardInterrupt that an engine raises."""

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

SAME_PRESS: Final = 0.2
"""The seconds within which a second SIGINT counts as the first: `kill` to a process group may deliver it twice."""

_pressed: float | None = None
"""The time of the last Ctrl-C."""
_is_watched: bool = False
"""True if every Ctrl-C is noted, so that any other KeyboardInterrupt comes from an engine."""


def is_interrupt(error: BaseException) -> bool:
    """Return whether an exception is a Ctrl-C. Without a watch, every KeyboardInterrupt counts as one."""
    return isinstance(error, KeyboardInterrupt) and (not _is_watched or _pressed is not None)


def is_pressed() -> bool:
    """Return whether Ctrl-C was pressed since the watch began."""
    return _pressed is not None


def note_interrupt() -> None:
    """Note a Ctrl-C, or another signal that raises KeyboardInterrupt, in a handler other than the watch's own."""
    global _pressed
    _pressed = time.monotonic()


def expect_no_interrupt() -> None:
    """Attribute every KeyboardInterrupt to an engine, in a process that ignores Ctrl-C."""
    global _is_watched
    _is_watched = True


@contextmanager
def watch_interrupts() -> Iterator[None]:
    """Note every Ctrl-C until the context ends; only in the main thread, and unless other code handles it.

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


def _raise_interrupt(number: int, frame: FrameType | None) -> None:
    last = _pressed
    note_interrupt()
    if last is None or time.monotonic() - last > SAME_PRESS:
        raise KeyboardInterrupt
