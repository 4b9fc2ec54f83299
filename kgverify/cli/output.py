"""The options of every command, the entries that commands print, and the standard streams, which an engine may close."""

import errno
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, NamedTuple, TextIO

from kgverify.errors import UserError

_WRITE_ERRORS: Final = {errno.ENOSPC, errno.EIO, errno.EBADF, errno.EFBIG, errno.EDQUOT}


class _Stream(NamedTuple):
    """A standard stream at the start: its name in `sys`, its descriptor, a duplicate of that (-1 if closed), the object."""

    name: str
    number: int
    duplicate: int
    stream: TextIO | None


QUIET: Final = ("--quiet", "-q")
VERBOSE: Final = ("--verbose", "-v")
JSON: Final = "--json"
END: Final = "--"
"""The word after which nothing is an option."""


class CatalogueAsked(Exception):
    """The catalogue of faults is wanted instead of the result of a command."""


@dataclass
class Settings:
    """The options of every command, and the words of this one without them.

    is_quiet:   print the first line of the result alone, and no progress
    is_verbose: print what the logger `kgverify` reports
    json_path:  the file for the result as JSON; `-` for standard output
    """

    is_quiet: bool = False
    is_verbose: bool = False
    json_path: str | None = None
    words: Sequence[str] = ()


settings: Final = Settings()
_streams: list[_Stream] = []


def take_settings(words: Sequence[str]) -> list[str]:
    """Take the options of every command out of the words of one, and return the others. UserError for a missing value."""
    settings.is_quiet, settings.is_verbose, settings.json_path = False, False, None
    rest: list[str] = []
    given = iter(words)
    for word in given:
        if word == END:
            rest += [word, *given]
        elif word in QUIET:
            settings.is_quiet = True
        elif word in VERBOSE:
            settings.is_verbose = True
        elif word == JSON or word.startswith(f"{JSON}="):
            value = next(given, "") if word == JSON else word.partition("=")[2]
            if not value or (value.startswith("-") and value != "-"):
                raise UserError("needs a value", where=JSON, fix="give a file, or - for standard output")
            settings.json_path = value
        else:
            rest.append(word)
    settings.words = rest
    return rest


def is_typed(*options: str) -> bool:
    """Return whether one of the spellings of an option was typed, and its value is not a default."""
    return any(word.split("=")[0] in options for word in settings.words)


@contextmanager
def keep_output() -> Iterator[None]:
    """Remember the standard streams until the context ends, for `restore_output`."""
    before = _streams[:]
    _streams[:] = [_remember("stdout", 1), _remember("stderr", 2)]
    try:
        yield
    finally:
        for each in _streams:
            if each.duplicate >= 0:
                with suppress(OSError):
                    os.close(each.duplicate)
        _streams[:] = before


def _remember(name: str, number: int) -> _Stream:
    duplicate = -1
    with suppress(OSError):
        duplicate = os.dup(number)
    return _Stream(name, number, duplicate, getattr(sys, name))


def restore_output() -> None:
    """Give the standard streams back that an engine has closed or replaced."""
    for name, number, duplicate, stream in _streams:
        if duplicate >= 0 and not _is_same_file(duplicate, number):
            os.dup2(duplicate, number)
        if stream is not None and stream.closed:
            stream = open(number, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115  open until the process ends
        if stream is not getattr(sys, name):
            setattr(sys, name, stream)


def _is_same_file(first: int, second: int) -> bool:
    try:
        return os.path.sameopenfile(first, second)
    except OSError:
        return False


def describe_write_error(error: BaseException) -> str:
    """Return why output could not be written; empty for an error that is about something else, such as a file."""
    is_of_output = isinstance(error, OSError) and error.filename is None and error.errno in _WRITE_ERRORS
    return os.strerror(error.errno or 0) if is_of_output and isinstance(error, OSError) else ""


def flush_output() -> None:
    """Write what is buffered for standard output. OSError if that fails; nothing is left to be written then."""
    restore_output()
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError, ValueError):
            # Python would try again when it ends, and print a second error.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


MOST_COLUMNS: Final = 80
"""The columns of a help text, at most."""
SUMMARY: Final = "Find the step where a compiled knowledge-graph prover stops agreeing with a reference prover."
EPILOG: Final = (
    "Exit codes: 0 agree or done, 1 diverge, 2 bad input, 3 inconclusive, 70 a bug in kgverify, 74 the result cannot be"
    " written, 128+N ended by signal N, such as 130 by Ctrl-C and 141 by a closed pipe."
)
FOR_EVERY_COMMAND: Final = (
    ("--json PATH", "Write the result as JSON; - for standard output."),
    ("--quiet, -q", "Print the line of the verdict alone, and no progress."),
    ("--verbose, -v", "Print notes, such as the configuration file that was read."),
    ("--help, -h", "Show the help of a command."),
)
"""The options of every command."""
ALONE: Final = (
    ("--version", "Print the versions of kgverify, Python, torch, CUDA and HDF5."),
    ("--install-completion", "Install the completion of commands and options for this shell."),
)
"""The options without a command."""

_START, _LOOK, _MEASURE = "Start here", "Look closer", "Measure and train"


class Entry(NamedTuple):
    """A command in the list of commands, which is imported only when it is used.

    panel:    the group of commands to which it belongs
    place:    the module below `kgverify.cli`, and its function or its table of functions by name
    summary:  the line about it in the list
    has_json: whether it writes its result as JSON
    compares: whether it takes the options of a configuration file that stand under no command
    """

    panel: str
    place: str
    summary: str
    has_json: bool = True
    compares: bool = False


ENTRIES: Final = {
    "diff": Entry(_START, "commands.diff:diff", "Compare two engines, or two traces, step by step.", compares=True),
    "record": Entry(_START, "commands.record:record", "Run one engine and write its trace.", compares=True),
    "show": Entry(_START, "commands.show:show", "Show a trace in names; or step through a saved run."),
    "report": Entry(_START, "commands.report:report", "Render a saved comparison, also as HTML or JUnit."),
    "fuzz": Entry(
        _START, "commands.fuzz:fuzz", "Try generated problems on two engines; shrink failures.", compares=True
    ),
    "dialect": Entry(
        _LOOK, "commands.dialect:dialect", "Propose the dialect of an engine by experiments.", compares=True
    ),
    "shrink": Entry(_LOOK, "commands.shrink:shrink", "Shrink a divergence to a minimal reproducer.", has_json=False),
    "replay": Entry(_LOOK, "commands.replay:replay", "Run a reproducer again.", has_json=False),
    "trace": Entry(_LOOK, "commands.trace:COMMANDS", "Import, check, repair, join, convert, export traces."),
    "audit": Entry(_LOOK, "commands.audit:COMMANDS", "Is it the compiler? Examine a compiled step."),
    "doctor": Entry(_LOOK, "commands.doctor:doctor", "List what is installed, missing or broken."),
    "evaluate": Entry(_MEASURE, "commands.evaluate:evaluate", "Rank the triples of a split by proofs.", compares=True),
    "bench": Entry(_MEASURE, "commands.bench:bench", "Measure the speed of engines.", compares=True),
    "train": Entry(
        _MEASURE, "commands.train:train", "Train a policy to imitate the reference's proofs.", compares=True
    ),
}
"""The commands by name, in the order of the list."""


def find_width() -> int:
    """Return the columns of a help text."""
    return max(20, min(shutil.get_terminal_size().columns, MOST_COLUMNS) - 2)


def render_help() -> str:
    """Return the list of commands."""
    width = find_width()
    sections = {
        title: [(name, each.summary) for name, each in ENTRIES.items() if each.panel == title]
        for title in (_START, _LOOK, _MEASURE)
    }
    sections |= {"Options": list(ALONE), "Options of every command": list(FOR_EVERY_COMMAND)}
    lines = [*textwrap.wrap("Usage: kgverify [OPTIONS] COMMAND [ARGS]...", width), "", *textwrap.wrap(SUMMARY, width)]
    for title, rows in sections.items():
        lines += ["", f"{title}:", *render_rows(rows, width)]
    return "\n".join([*lines, "", *textwrap.wrap(EPILOG, width)])


def render_rows(rows: list[tuple[str, str]], width: int, most: int = 30) -> Iterator[str]:
    """Yield lines of names beside their descriptions, or above them where a name is too long."""
    column = min(most, max((len(name) for name, _ in rows), default=0) + 4, max(6, width // 2))
    for name, text in rows:
        folded = textwrap.wrap(text, max(10, width - column)) or [""]
        if len(name) + 4 > column:
            yield f"  {name}"
        else:
            yield f"  {name:{column - 2}}{folded.pop(0)}".rstrip()
        yield from (f"{'':{column}}{line}" for line in folded if line)
