"""Signals that end a command, turned into exceptions so that finished work is kept and reported."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

_SIGNALS: Final = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class Ended(KeyboardInterrupt):
    """A signal that asks the process to end, such as SIGTERM."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    @property
    def exit_code(self) -> int:
        """The exit code of a process that ends by this signal, as in a shell."""
        return 128 + self.number


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Raise `Ended` on the first SIGTERM or SIGHUP; ignore those that follow during the clean-up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> NoReturn:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise Ended(number)

    before = [(each, signal.getsignal(each)) for each in _SIGNALS]
    for each, handler in before:
        # An ignored signal, as under nohup, stays ignored.
        if handler is not signal.SIG_IGN:
            signal.signal(each, end)
    try:
        yield
    finally:
        for each, handler in before:
            signal.signal(each, handler if handler is not None else signal.SIG_DFL)
