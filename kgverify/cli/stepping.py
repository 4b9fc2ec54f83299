"""Commands that step through a saved run, one a line."""

import sys
from collections.abc import Iterator
from typing import Final

from rich.console import RenderableType

from kgverify.escaping import make_visible
from kgverify.report.render.screen import Screen, Text
from kgverify.report.stepper import MOVES, SEARCH, Stepper, render_help, render_position

KEYS: Final = "n p next, f b step, s S stage, o out, t tree, d c go, / search, h help, q quit"


def step_through(stepper: Stepper, console: Screen) -> None:
    """Show the position after each command until `q` or the end of the input."""
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
    """Read a command with its argument from each line. Print it unless a terminal does, so that the output is readable alone."""
    console.print(Text(f"\n{KEYS}: one a line"), style="dim")
    for line in map(str.strip, sys.stdin):
        if line:
            if not sys.stdin.isatty():
                console.print(Text(f"\n> {make_visible(line)}"))
            name, _, argument = (SEARCH, "", line[1:]) if line.startswith(SEARCH) else line.partition(" ")
            yield name, argument.strip()
