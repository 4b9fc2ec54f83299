"""Progress bars, only on a terminal; results on standard output, and everything else on standard error."""

import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.console import Group
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)

from kgverify.cli.entries import ENTRIES
from kgverify.cli.output import JSON, LOG, QUIET, VERBOSE, restore_output, settings
from kgverify.errors import UserError
from kgverify.escaping import make_visible
from kgverify.files import writing
from kgverify.progress import show_part
from kgverify.report.next_steps import NextStep
from kgverify.report.render.screen import Screen, Text
from kgverify.report.report import encode_report

ECHOED: Final = 2
"""The number of columns left free for the terminal's echo of Ctrl-C."""
SECONDS_BETWEEN_LINES: Final = 60.0
"""The interval between progress lines in a log."""

_UNFOLDED: Final = 100_000

PIPE_WIDTH: Final = 120
"""The width of a report that is written to a pipe or a log."""


def log(text: str) -> None:
    """Append text to the file of `--log`. UserError if that fails; then nothing more is written there."""
    path, settings.log_path = settings.log_path, None
    if path is not None:
        writing.append_to_file(path, text.encode("utf-8", "backslashreplace"))
        settings.log_path = path


class SafeConsole(Screen):
    """A screen that raises BrokenPipeError instead of ending the process if the reader of a pipe is gone.

    Its text also goes to the file of `--log`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(record=settings.log_path is not None, **options)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print objects, and log their text."""
        super().print(*objects, **options)
        if self.record:
            log(self.export_text())

    def on_broken_pipe(self) -> None:
        """Raise the error that is being handled."""
        raise


class _FirstLine(SafeConsole):
    """A console that prints the first nonblank line in full and drops the others."""

    _is_done = False

    def print(self, *objects: Any, **options: Any) -> None:
        """Print the first line of the objects, unless a line was already printed; log all of them."""
        self.record = False
        wide = self.options.update_width(_UNFOLDED)
        for line in self.render_lines(Group(*objects), wide, pad=False):
            text = Text.assemble(*((segment.text, segment.style or "") for segment in line if not segment.control))
            log(f"{text.plain}\n")
            if not self._is_done and text.plain.strip():
                self._is_done = True
                super().print(text, soft_wrap=True)


def make_error_console() -> Screen:
    """Return the console for warnings, errors and progress."""
    return SafeConsole(stderr=True)


def print_note(*lines: str, style: str = "") -> None:
    """Print lines on standard error without folding them."""
    console = make_error_console()
    for line in lines:
        console.print(line, style=style or None, soft_wrap=True)


def print_warning(text: str) -> None:
    """Print a warning on standard error."""
    print_note(f"warning: {text}", style="yellow")


def make_result_console(*, is_beside_file: bool = False) -> Screen:
    """Return the console for the text result: standard output, or standard error if JSON or a file goes to standard output."""
    restore_output()
    to_error = is_beside_file or settings.json_path == "-"
    if settings.is_quiet:
        return _FirstLine(stderr=to_error)
    console = SafeConsole(stderr=to_error)
    return console if console.is_terminal else SafeConsole(stderr=to_error, width=PIPE_WIDTH)


def make_console_beside(paths: Collection[str], where: str) -> Screen:
    """Return the console for the text result beside files, one of which may be `-`. UserError for several of these."""
    num_to_output = [*paths].count("-")
    if num_to_output > 1:
        raise UserError("only one format can go to standard output", where=where, fix="name files for the others")
    return make_result_console(is_beside_file=bool(num_to_output))


def print_lines(console: Screen, *lines: str, style: str = "") -> None:
    """Print lines; on a terminal, fold long ones except commands, which people copy."""
    for line in lines:
        is_folded = not settings.is_quiet and console.is_terminal and "kgverify " not in line
        console.print(Text(make_visible(line), style), **({} if is_folded else {"soft_wrap": True}))


class Phase:
    """A progress bar, called with the number finished since the last call."""

    def __init__(self, progress: Progress, title: str, total: int) -> None:
        self._progress, self._title = progress, title
        self._task = progress.add_task(make_visible(title), total=total or None)

    def __call__(self, num_finished: int) -> None:
        """Advance the bar."""
        self._progress.advance(self._task, num_finished)

    def rename(self, title: str, **fields: Any) -> None:
        """Replace the title, and perhaps fields of rich's task."""
        self._title = title
        self._progress.update(self._task, description=make_visible(title), refresh=True, **fields)

    def show_part(self, title: str, time: str) -> None:
        """Add a slow part to the title, with the time that it takes; an empty title ends it."""
        shown = f"{self._title}, {title}" if title else self._title
        self._progress.update(self._task, description=make_visible(shown), refresh=True, time=time)


class _TimeLeft(ProgressColumn):
    """A column with the time left of this phase, or the time that its slow part takes."""

    def render(self, task: Task) -> Text:
        """Return the time, if it can be estimated."""
        left = task.time_remaining
        known = "" if left is None or task.finished else f"{timedelta(seconds=round(left))} left of this part"
        return Text(task.fields.get("time") or known, style="progress.remaining")


@contextmanager
def show_phase(title: str, total: int, *further: ProgressColumn) -> Iterator[Phase]:
    """Show a progress bar, with optional further columns, until the context ends; only on a terminal."""
    console = make_error_console()
    console.width, console.record = max(1, console.width - ECHOED), False
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(20), MofNCompleteColumn()
    bar = Progress(*columns, *further, TimeElapsedColumn(), _TimeLeft(), console=console, transient=True)
    with bar if console.is_terminal and not settings.is_quiet else nullcontext():
        phase = Phase(bar, title, total)
        shown = show_part.set(phase.show_part)
        try:
            yield phase
        finally:
            show_part.reset(shown)


class Rate(ProgressColumn):
    """A column with the number finished per second."""

    def render(self, task: Task) -> Text:
        """Return the current rate."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f}/s", style="progress.data.speed")


@contextmanager
def show_work(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show the progress of long work: on a terminal, a bar with rate and remaining time; otherwise a line every minute."""
    console = make_error_console()
    if settings.is_quiet or console.is_terminal:
        with show_phase(title, total, Rate()) as phase:
            yield phase
        return
    started = printed = time.monotonic()
    num_done = num_before = 0

    def advance(num_finished: int) -> None:
        nonlocal started, printed, num_done, num_before
        num_done += num_finished
        now = time.monotonic()
        if num_done and now - printed >= SECONDS_BETWEEN_LINES:
            printed = now
            rate = (num_done - num_before) / (now - started)
            left = timedelta(seconds=round((total - num_done) / rate))
            line = f"{title}: {num_done:,} of {total:,}, {rate:,.0f}/s, {left} left"
            console.print(line, soft_wrap=True)
        if not num_before:
            # The rate leaves out the time before the first result, such as that of a compilation.
            started, num_before = now, num_done

    yield advance


def typed_command(*further: str) -> str:
    """Return the command as typed, without --save and --json but with further words, quoted for a shell."""
    return type_again("", *further).text


def type_again(does: str, *further: str) -> NextStep:
    """Return the step of the command as typed, without --save and --json but with further words."""
    return NextStep(does=does, command=("kgverify", *typed_words({"--save", JSON, LOG}), *further))


def replay_again(file: str | Path, engine: str | None, reference: str | None, *, trust: bool = False) -> NextStep:
    """Return the step that replays a reproducer of this command.

    engine, reference, trust: as typed; kgverify's own engines need no mention, since the reproducer may name them
    """
    words = ["kgverify", "replay", str(file)]
    for option, name in (("--engine", engine), ("--reference", reference)):
        words += [option, name] if name and ":" in name else []
    return NextStep(does="run it again", command=(*words, *["--trust"] * trust))


def typed_words(dropped: Set[str]) -> list[str]:
    """Return the words of the command as typed, without some options and their values."""
    words: list[str] = []
    is_value = False
    for word in sys.argv[1:]:
        if not is_value and word.split("=")[0] not in dropped and word not in (*QUIET, *VERBOSE):
            words.append(word)
        is_value = not is_value and word in dropped
    return words


def check_writable(path: str | None) -> None:
    """Raise UserError, before a long run, for a file that cannot be written. `-` and None pass."""
    if path is not None and path != "-":
        writing.check_writable(path)


def write_result(encoded: bytes, path: str) -> None:
    """Write to a file, or to standard output for `-`. UserError for a path that cannot be written."""
    if path == "-":
        restore_output()
        # Bytes are UTF-8 whatever the terminal's encoding is.
        sys.stdout.flush()
        sys.stdout.buffer.write(encoded)
        sys.stdout.buffer.flush()
        return
    writing.write_file(path, encoded)


def write_github(annotations: str, markdown: Callable[[], str], *, to_error: bool) -> None:
    """Print commands for GitHub's runner without the console, which would break them; append the summary."""
    (sys.stderr if to_error else sys.stdout).write(annotations)
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        writing.append_to_file(summary, markdown().encode())


def write_json(value: Any, steps: Sequence[NextStep] | None = None, indent: int | None = 2) -> None:
    """Write a value as JSON to the target of `--json`, if given, with the steps that lead on; as in `encode_report`."""
    if settings.json_path is not None:
        write_result(encode_report(value, steps and [*map(_ask_for_json, steps)], indent), settings.json_path)


def _ask_for_json(step: NextStep) -> NextStep:
    """Return a step whose command also writes JSON to standard output, if it can."""
    words = {*step.command}
    if step.command[:1] != ("kgverify",) or words & {JSON, *ENTRIES[step.command[1]].without_json}:
        return step
    return msgspec.structs.replace(step, command=(*step.command, JSON, "-"))
