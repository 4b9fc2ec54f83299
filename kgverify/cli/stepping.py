"""Commands that step through a saved run: single keys on a separate screen in a terminal, otherwise lines."""

import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Group, RenderableType, ScreenContext
from rich.control import Control
from rich.segment import Segment, Segments

from kgverify.errors import count_of
from kgverify.escaping import make_visible
from kgverify.interrupts import handle_signals
from kgverify.report.render.screen import Screen, Text
from kgverify.report.stepper import MOVES, SEARCH, Stepper, render_help, render_position

try:
    import termios
    import tty
except ImportError:
    # Without termios, commands are lines.
    termios = None  # type: ignore[assignment]

KEYS: Final = "n p next, f b step, s S stage, o out, t tree, d c go, / search, h help, q quit"

_QUESTIONS: Final = {"d": "number of the divergence: ", "c": "number of the cause: ", SEARCH: "words to search for: "}
_SEQUENCES: Final = {"\x1b[A": "p", "\x1b[B": "n", "\x1b[C": "f", "\x1b[D": "b", "\x1b[Z": "S", "\t": "s", "\x04": "q"}
"""The sequences that a terminal sends for arrows, shift-tab, tab and the end of input."""

_SCROLLS: Final = {" ": 1, "\x1b[6~": 1, "\x1b[5~": -1}
"""The number of pages by which keys scroll: the space bar, page down and page up."""

_KEY: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|.", re.DOTALL)


def step_through(stepper: Stepper, console: Screen) -> None:
    """Show the position after each command until `q` or the end of the input."""
    if termios and sys.stdin.isatty() and console.is_terminal and not console.is_dumb_terminal:
        stepper.to_divergent_stage()
        with _keys_at_once(), console.screen(hide_cursor=True) as screen:
            view = _LiveView(stepper, console, screen)
            with handle_signals([signal.SIGWINCH], view.draw):
                view.obey_keys()
        return
    console.print(render_position(stepper))
    for name, argument in _read_lines(console):
        if name == "q":
            return
        said = _obey(stepper, name, argument)
        console.print(render_position(stepper) if said is None else said)
        if name == SEARCH and stepper.words:
            console.print(render_position(stepper))


def _obey(stepper: Stepper, name: str, argument: str) -> RenderableType | None:
    """Carry out a command. Return the answer, or None if the new position is the answer."""
    if name in ("h", "?"):
        return render_help()
    if name == SEARCH:
        return stepper.search(argument)
    if name not in MOVES:
        return f"unknown command {name!r}; h lists them"
    digits = "".join(argument.split())
    return stepper.move(name, int(digits) if digits.isdecimal() and len(digits) < 19 else None) or None


def _read_lines(console: Screen) -> Iterator[tuple[str, str]]:
    """Read a command with its argument from each line, and print it, so that the output is readable without the input."""
    console.print(Text(f"\n{KEYS}: one a line"), style="dim")
    for line in map(str.strip, sys.stdin):
        if line:
            console.print(Text(f"\n> {make_visible(line)}"))
            name, _, argument = (SEARCH, "", line[1:]) if line.startswith(SEARCH) else line.partition(" ")
            yield name, argument.strip()


class _LiveView:
    """The position of a stepper on the terminal's alternate screen, redrawn after each key and each resize."""

    def __init__(self, stepper: Stepper, console: Screen, screen: ScreenContext) -> None:
        self._stepper, self._console, self._screen = stepper, console, screen
        self._answer: RenderableType | None = None
        self._question = ""
        self._top = 0
        self._keys: list[str] = []

    def obey_keys(self) -> None:
        """Carry out the commands of keys until `q` or the end of the input."""
        self.draw()
        while key := self._next_key():
            name = _SEQUENCES.get(key, key)
            if name == "q":
                return
            if name in _SCROLLS:
                self._top = max(0, self._top + _SCROLLS[name] * max(1, self._console.height - 4))
            elif name.isprintable():
                argument = self._ask(_QUESTIONS[name]) if name in _QUESTIONS else ""
                self._top = 0
                before = self._stepper.position.divergence
                self._answer = None if argument is None else _obey(self._stepper, name, argument)
                if name == SEARCH or self._stepper.position.divergence != before:
                    self._stepper.to_divergent_stage()
            self.draw()

    def _next_key(self) -> str:
        """Return a key or its sequence; empty at the end of the input."""
        if not self._keys:
            self._keys = _KEY.findall(os.read(sys.stdin.fileno(), 64).decode(errors="replace"))
        return self._keys.pop(0) if self._keys else ""

    def _ask(self, question: str) -> str | None:
        """Read a line at the bottom of the screen; None after Escape."""
        text = ""
        while True:
            self._question = f"{question}{text}▏"
            self.draw()
            key = self._next_key()
            if key in ("", "\r", "\n", "\x1b", "\x04"):
                self._question = ""
                return text if key in ("\r", "\n") else None
            text = text[:-1] if key in ("\x7f", "\b") else text + key if key.isprintable() else text

    def draw(self, *_: object) -> None:
        """Draw the position, an answer or a question, and the keys."""
        content: RenderableType = render_position(self._stepper)
        answer = Text()
        if isinstance(self._answer, str):
            answer = Text(self._answer, style="yellow")
        elif self._answer is not None:
            content = Group(Text(), self._answer)
        words = f"n and p: divergences with {self._stepper.words!r}" if self._stepper.words else ""
        last = Text(self._question, style="bold") if self._question else Text(KEYS, style="dim")
        # A single write avoids flicker.
        with self._console:
            self._console.control(Control.home())
            self._screen.update(*self._cut(content, answer or Text(words, style="dim"), last))

    def _cut(self, content: RenderableType, answer: Text, last: Text) -> Iterator[RenderableType]:
        """Yield the content, cut to the height of the terminal, and two lines at the bottom."""
        lines = self._console.render_lines(content, pad=False)
        room = max(1, self._console.height - 3)
        rest = len(lines) - self._top - room
        shown = lines[self._top : self._top + room]
        yield Segments([piece for line in shown for piece in (*line, Segment.line())])
        yield Segments([Segment.line()] * (room - len(shown)))
        more = Text(f"… {count_of(rest, 'more line')}: space   " if rest > 0 else "", style="dim").append(answer)
        for line in (more, last):
            line.truncate(self._console.width, overflow="ellipsis")
            yield line


@contextmanager
def _keys_at_once() -> Iterator[None]:
    """Receive every key immediately, without echo."""
    usual = termios.tcgetattr(sys.stdin)
    # TCSANOW, so that earlier input is not discarded.
    tty.setcbreak(sys.stdin, termios.TCSANOW)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, usual)
