"""The common options of all commands, and the standard streams, which an engine may close."""

import errno
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, TextIO

from kgverify.errors import UserError, on_command_line

_WRITE_ERRORS: Final = {errno.ENOSPC, errno.EIO, errno.EBADF, errno.EFBIG, errno.EDQUOT}


QUIET: Final = ("--quiet", "-q")
VERBOSE: Final = ("--verbose", "-v")
JSON: Final = "--json"
LOG: Final = "--log"
END: Final = "--"
"""The word after which no word is an option."""


class CatalogueAsked(Exception):
    """A request for the catalogue of faults instead of the result of a command."""


@dataclass
class Settings:
    """The common options of all commands, and the remaining words of this command.

    is_quiet:   print only the first line of the result, and no progress
    is_verbose: print the messages of the logger `kgverify`
    json_path:  the file for the result as JSON; `-` for standard output
    log_path:   the file to which everything that is printed is appended
    """

    is_quiet: bool = False
    is_verbose: bool = False
    json_path: str | None = None
    log_path: str | None = None
    words: Sequence[str] = ()


settings: Final = Settings()
_streams: list[tuple[str, int, int, TextIO | None]] = []
"""The standard streams at the start: the name in `sys`, the descriptor, a duplicate of it (-1 if closed), and the object."""


def take_settings(words: Sequence[str]) -> list[str]:
    """Take the common options out of the words of a command, and return the other words. UserError for a missing value."""
    on_command_line.set(bool(words))
    settings.is_quiet, settings.is_verbose = False, False
    paths: dict[str, str | None] = {JSON: None, LOG: None}
    rest: list[str] = []
    given = iter(words)
    for word in given:
        if word == END:
            rest += [word, *given]
        elif word in QUIET:
            settings.is_quiet = True
        elif word in VERBOSE:
            settings.is_verbose = True
        elif (option := word.partition("=")[0]) in paths:
            value = next(given, "") if word == option else word.partition("=")[2]
            if not value or (value.startswith("-") and (value, option) != ("-", JSON)):
                fix = "give a file, or - for standard output" if option == JSON else "give a file"
                raise UserError("needs a value", where=option, fix=fix)
            paths[option] = value
        else:
            rest.append(word)
    settings.json_path, settings.log_path = paths[JSON], paths[LOG]
    settings.words = rest
    return rest


def is_typed(*options: str) -> bool:
    """Return whether the user typed one of some options, also as `--no-` and the name, instead of leaving their defaults."""
    return any(word.split("=")[0].replace("--no-", "--", 1) in options for word in settings.words)


@contextmanager
def keep_output() -> Iterator[None]:
    """Remember the standard streams until the context ends, for `restore_output`."""
    before = _streams[:]
    _streams[:] = [_remember("stdout", 1), _remember("stderr", 2)]
    try:
        yield
    finally:
        for _, _, duplicate, _ in _streams:
            with suppress(OSError):
                os.close(duplicate)
        _streams[:] = before


def _remember(name: str, number: int) -> tuple[str, int, int, TextIO | None]:
    duplicate = -1
    with suppress(OSError):
        duplicate = os.dup(number)
    return name, number, duplicate, getattr(sys, name)


def restore_output() -> None:
    """Restore the standard streams that an engine closed or replaced."""
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
    """Return why output could not be written; empty for an error about something else, such as a file."""
    is_of_output = isinstance(error, OSError) and error.filename is None and error.errno in _WRITE_ERRORS
    return os.strerror(error.errno or 0) if is_of_output and isinstance(error, OSError) else ""


def flush_output() -> None:
    """Flush standard output. OSError if that fails; the buffered text is then dropped."""
    restore_output()
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError, ValueError):
            # Otherwise Python would try again at its end, and print a second error.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise
