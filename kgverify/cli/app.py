"""The application, with its exit codes and error messages."""

import io
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from enum import IntEnum

from kgverify.cli.entries import ENTRIES, read_help, render_help
from kgverify.cli.output import (
    JSON,
    describe_write_error,
    flush_output,
    keep_output,
    restore_output,
    settings,
    take_settings,
)
from kgverify.errors import InternalError, NotWritten, UserError, find_missing_dependency, suggest
from kgverify.interrupts import find_interrupt, raise_lost, watch_interrupts
from kgverify.version import __version__


class ExitCode(IntEnum):
    """The exit codes other than 0, 1 and 3, which stand for verdicts (see `kgverify.cli.commands.diff`)."""

    BAD_INPUT = 2
    BUG = 70
    NOT_WRITTEN = 74
    CLOSED_PIPE = 141


def run() -> int:
    """Run the command line, and return the exit code. It is 0 only after the whole result was printed."""
    if sys.stdout is None:
        print("error: standard output is closed\nfix: redirect it to a file, or to /dev/null", file=sys.stderr)  # noqa: T201  its own words alone
        return ExitCode.NOT_WRITTEN
    with watch_interrupts(), keep_output():
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                # Escape characters that the terminal's encoding lacks.
                stream.reconfigure(errors="backslashreplace")
        try:
            code = _run(sys.argv[1:])
            raise_lost()
        except BaseException as error:
            restore_output()
            code = _end_with(error)
        try:
            flush_output()
            if settings.log_path is not None:
                from kgverify.cli.progress import log

                log(f"exit code {int(code)}\n")
        except BaseException as error:
            code = _end_with(error)
        # The options of one command do not apply to the next command in this process.
        take_settings(())
        return code


def _run(typed: Sequence[str]) -> int:
    """Run a command, and return its exit code."""
    words = take_settings(typed)
    first = words[0] if words else ""
    if first in ("", "-h", "--help"):
        print(render_help())  # noqa: T201  its own words alone
        return 0 if words else ExitCode.BAD_INPUT
    if first == "--version":
        from kgverify.api.versions import describe_versions

        print(*describe_versions(), sep="\n")  # noqa: T201  versions of installed packages
        return 0
    if first not in ENTRIES and first != "--install-completion":
        what = "option" if first.startswith("-") else "command"
        fix = suggest(first, ENTRIES) or "kgverify --help lists them"
        raise UserError(f"unknown {what}", where=first, fix=fix)
    if (text := read_help(words)) is not None:
        print(text)  # noqa: T201  its own words alone
        return 0
    without_json = [each for each in words if first in ENTRIES and each in ENTRIES[first].without_json]
    if settings.json_path is not None and without_json:
        name = " ".join(dict.fromkeys((first, without_json[0])))
        raise UserError(f"{name} has no result as JSON", where=JSON, fix="leave it out")
    _check_current_folder()
    from kgverify.cli.command_line import call

    return call(words)


def _check_current_folder() -> None:
    """Raise a UserError if the current folder was deleted, since relative paths then have no meaning and torch cannot start."""
    try:
        os.getcwd()
    except OSError as error:
        raise UserError(
            f"the current folder cannot be used: {error.strerror}", fix="cd to a folder that exists"
        ) from None


def _end_with(error: BaseException) -> int:
    """Print the meaning of the exception that ended a command, and return the exit code."""
    if isinstance(error, BrokenPipeError):
        return ExitCode.CLOSED_PIPE
    # This import takes as long as everything else that a short command needs.
    from kgverify.cli.progress import make_error_console, print_note

    number = find_interrupt()
    if isinstance(error, KeyboardInterrupt) or (number is not None and not isinstance(error, UserError)):
        # Any other exception is a consequence of the interrupt, for example in the middle of an import.
        ended_by = signal.Signals(number or signal.SIGINT)
        make_error_console().print("interrupted" if ended_by is signal.SIGINT else f"ended by {ended_by.name}")
        return 128 + ended_by
    if isinstance(error, SystemExit):
        # No command ends this way: an exit code may be 0 only with a verdict.
        error = InternalError(f"SystemExit: {error.code}")
    known = error if isinstance(error, UserError) else find_missing_dependency(error)
    if known is not None:
        print_note(*f"error: {known}".split("\n"), style="red")
        return ExitCode.NOT_WRITTEN if isinstance(known, NotWritten) else ExitCode.BAD_INPUT
    if reason := describe_write_error(error):
        print_note(f"error: output cannot be written: {reason}", style="red")
        return ExitCode.NOT_WRITTEN
    print_note(*"".join(traceback.format_exception(error)).split("\n"))
    print_note(f"This is a bug in kgverify {__version__}: please report it with the lines above.", style="red")
    return ExitCode.BUG
