"""The file and the line of a function."""

import inspect
import sys
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any, Final, NamedTuple

MOST_LINES: Final = 12
"""The maximum number of lines of a function that are quoted."""


class CodeLocation(NamedTuple):
    """The location of a function or a class. file: relative to the current folder, or else as it is imported."""

    file: str
    line: int
    last_line: int
    text: tuple[str, ...]


def locate_code(function: Any) -> CodeLocation | None:
    """Return the location of a function or a class, with its first lines; None if it is unknown."""
    while isinstance(function, partial):
        function = function.func
    function = inspect.unwrap(function) if callable(function) else function
    try:
        file, (lines, line) = Path(inspect.getsourcefile(function) or "").absolute(), inspect.getsourcelines(function)
    except (OSError, TypeError):
        return None
    last = line + len(lines) - 1
    return CodeLocation(_shorten(file), line, last, tuple(dedent("".join(lines[:MOST_LINES])).rstrip().split("\n")))


def _shorten(file: Path) -> str:
    folders = (Path.cwd(), *(Path(each).absolute() for each in sys.path if each))
    found = next((each for each in folders if file.is_relative_to(each)), None)
    return str(file.relative_to(found)) if found is not None else file.name
