"""Progress bars on a terminal, none in a pipe; results on standard output, everything else on standard error."""

import re
import shlex
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from kgverify.errors import UserError

_TITLED: Final = re.compile(r" *\w+(?: \w+)* {2,}(?=\S)")

ECHOED: Final = 2
"""Columns left free, so that a terminal has room to echo Ctrl-C without going on to the next line."""
SECONDS_BETWEEN_LINES: Final = 60.0
"""In a log, of work that may take hours."""

PIPE_WIDTH: Final = 120
"""Columns of a report that goes into a pipe or a log."""


def make_error_console() -> Console:
    """For warnings, errors and progress."""
    return Console(stderr=True)


def make_result_console(json_path: str | None) -> Console:
    """For the result as text: standard output, unless JSON goes there."""
    console = Console(stderr=json_path == "-")
    return console if console.is_terminal else Console(stderr=json_path == "-", width=PIPE_WIDTH)


def print_lines(console: Console, lines: Iterable[str]) -> None:
    """Print lines as they are; those too long for a terminal go on under their text, but for commands, which are copied."""
    for line in lines:
        if console.is_terminal and len(line) > console.width and "kgverify " not in line:
            line = "\n".join(_fold(line, console.width))
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _fold(line: str, width: int) -> list[str]:
    """A line cut between words; what follows is put under the value where the line is a title and its value."""
    indent = len(line) - len(line.lstrip())
    titled = _TITLED.match(line)
    hanging = titled.end() if titled and titled.end() < width // 2 else indent + 3
    return textwrap.wrap(
        line,
        width,
        subsequent_indent=" " * hanging,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )


class Phase:
    """A progress bar; of one that is not shown nothing is seen. Called with the number finished since the last call."""

    def __init__(self, progress: Progress | None = None, title: str = "", total: int = 0) -> None:
        self._progress = progress
        self._task = progress.add_task(title, total=total or None) if progress is not None else None

    def __call__(self, num_finished: int) -> None:
        """Go on by so many."""
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task, num_finished)

    def rename(self, title: str) -> None:
        """Say what is being done from now on."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, description=title, refresh=True)


@contextmanager
def show_phase(title: str, total: int) -> Iterator[Phase]:
    """A progress bar for one phase, gone when it ends; on a terminal only."""
    console = make_error_console()
    if not console.is_terminal:
        yield Phase()
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    console.width = max(1, console.width - ECHOED)
    with Progress(*columns, console=console, transient=True) as progress:
        yield Phase(progress, title, total)


class Rate(ProgressColumn):
    """How many are finished in a second."""

    def render(self, task: Task) -> Text:
        """Of the last while."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f}/s", style="progress.data.speed")


@contextmanager
def show_work(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Progress of work that may take hours: on a terminal a bar with the rate and the time left, else a line a minute."""
    console = make_error_console()
    if console.is_terminal:
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            Rate(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task(title, total=total or None)
            yield lambda num_finished: progress.advance(task, num_finished)
        return
    started = said = time.monotonic()
    num_done = 0

    def tell(num_finished: int) -> None:
        nonlocal said, num_done
        num_done += num_finished
        now = time.monotonic()
        if num_done and now - said >= SECONDS_BETWEEN_LINES:
            said = now
            rate = num_done / (now - started)
            left = timedelta(seconds=round((total - num_done) / rate))
            line = f"{title}: {num_done:,} of {total:,}, {rate:,.0f}/s, {left} left"
            console.print(line, highlight=False, markup=False, soft_wrap=True)

    yield tell


def typed_command(*further: str) -> str:
    """The command as it was typed, less where it writes its result, with further words; to be copied into a shell."""
    words: list[str] = []
    is_place = False
    for word in sys.argv[1:]:
        if not is_place and not word.startswith(("--save=", "--json=")) and word not in ("--save", "--json"):
            words.append(word)
        is_place = not is_place and word in ("--save", "--json")
    return shlex.join(["kgverify", *words, *further])


def check_writable(path: str | None) -> None:
    """Before a long run: UserError for a file that could not be written after it. `-` and None always can."""
    if path is None or path == "-":
        return
    file = Path(path)
    existed = file.exists()
    if existed and not (file.is_file() or file.is_dir()):
        # To open and close a pipe would tell its reader that all was said.
        return
    write_result(b"", path, "ab")
    if not existed:
        file.unlink()


def write_result(encoded: bytes, path: str, mode: str = "wb") -> None:
    """Write to a file, or to standard output for `-`. UserError for a path that cannot be written."""
    if path == "-":
        # As bytes: UTF-8 whatever the terminal's encoding is.
        sys.stdout.flush()
        sys.stdout.buffer.write(encoded)
        sys.stdout.buffer.flush()
        return
    try:
        with Path(path).open(mode) as file:
            file.write(encoded)
    except OSError as error:
        raise UserError(
            f"cannot be written: {error.strerror}", where=path, fix="give a path in a folder that exists"
        ) from None


def write_json(value: Any, path: str | None) -> None:
    """Write a value as indented JSON, as `write_result` does; for None nothing."""
    if path is not None:
        write_result(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n", path)
