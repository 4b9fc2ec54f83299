"""Commands that step through a saved run: single keys in a terminal, else lines."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Final, NamedTuple

from kgverify.escaping import make_visible
from kgverify.report.render.screen import Screen, Text
from kgverify.report.stepper.render_stepper import render_help, render_position
from kgverify.report.stepper.stepper import MOVES, Stepper

KEYS: Final = "n p divergence, f b step, s S stage, o out, d c jump, h help, q quit"

_NUMBERED: Final = {"d": "divergence", "c": "cause"}
_SEQUENCES: Final = {"\x1b[A": "p", "\x1b[B": "n", "\x1b[C": "f", "\x1b[D": "b", "\x1b[Z": "S", "\t": "s", "\x04": "q"}
"""The sequences that a terminal sends for arrows, shift-tab, tab and the end of input."""

_KEY: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|.", re.DOTALL)


class Command(NamedTuple):
    """A command; its number is None if it was missing or is not a number."""

    name: str
    number: int | None = None


def step_through(stepper: Stepper, console: Screen) -> None:
    """Show the position after each command, until `q` or the end of the input."""
    if sys.stdin.isatty() and console.is_terminal:
        with _keyboard() as keyboard:
            _obey(stepper, console, _read_keys(keyboard, console))
    else:
        _obey(stepper, console, _read_lines(console))


def _obey(stepper: Stepper, console: Screen, commands: Iterator[Command]) -> None:
    console.print(render_position(stepper))
    for command in commands:
        if command.name == "q":
            return
        if command.name in ("h", "?"):
            console.print(render_help())
        elif command.name not in MOVES:
            console.print(f"unknown command {command.name!r}; h lists them")
        elif reason := stepper.move(command.name, command.number):
            console.print(reason)
        else:
            console.print(render_position(stepper))


def _read_lines(console: Screen) -> Iterator[Command]:
    """Read a command with its number from each line, and print it, so that the output can be read alone."""
    console.print(Text(f"\n{KEYS}: one a line"), style="dim")
    for line in sys.stdin:
        words = line.split()
        if words:
            console.print(Text(f"\n> {make_visible(line.strip())}"))
            yield Command(words[0], _parse_number("".join(words[1:])))


def _read_keys(keyboard: "Keyboard", console: Screen) -> Iterator[Command]:
    """Read a command from each key, and ask for its number if it needs one."""
    while True:
        console.print(Text(f"\n{KEYS}"), style="dim")
        for key in _KEY.findall(keyboard.read()) or ["q"]:
            name = _SEQUENCES.get(key, key)
            if name in _NUMBERED:
                yield Command(name, _parse_number(keyboard.ask(f"number of the {_NUMBERED[name]}: ")))
            elif name.isprintable() and not name.isspace():
                yield Command(name)


class Keyboard:
    """The keys of a terminal, each when it is pressed; lines on systems without such terminals."""

    def __init__(self, termios: ModuleType | None) -> None:
        self._termios = termios
        self._usual = termios.tcgetattr(sys.stdin) if termios else None

    def take_keys(self) -> None:
        """Start to receive every key at once, without echo."""
        if self._termios:
            import tty

            # TCSANOW, so that earlier input is not discarded.
            tty.setcbreak(sys.stdin, self._termios.TCSANOW)

    def give_back(self) -> None:
        """Restore the terminal."""
        if self._termios:
            self._termios.tcsetattr(sys.stdin, self._termios.TCSADRAIN, self._usual)

    def read(self) -> str:
        """Return the characters of the keys pressed; empty at the end of the input."""
        if not self._termios:
            return sys.stdin.readline().strip()
        return os.read(sys.stdin.fileno(), 64).decode(errors="replace")

    def ask(self, question: str) -> str:
        """Read a line with the usual editing keys; empty at the end of the input."""
        self.give_back()
        try:
            return input(question)
        except EOFError:
            return ""
        finally:
            self.take_keys()


@contextmanager
def _keyboard() -> Iterator[Keyboard]:
    termios: ModuleType | None = None
    with suppress(ImportError):
        import termios
    keyboard = Keyboard(termios)
    keyboard.take_keys()
    try:
        yield keyboard
    finally:
        keyboard.give_back()


def _parse_number(text: str) -> int | None:
    return int(text) if text.strip().isdecimal() and len(text) < 19 else None
