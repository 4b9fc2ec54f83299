"""The standard streams, which an engine may close or replace, and errors of writing to them."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple, TextIO

_WRITE_ERRORS: Final = {errno.ENOSPC, errno.EIO, errno.EBADF, errno.EFBIG, errno.EDQUOT}


class _Stream(NamedTuple):
    """A standard stream at the start: its name in `sys`, its descriptor, a duplicate of that (-1 if closed), the object."""

    name: str
    number: int
    duplicate: int
    stream: TextIO | None


QUIET: Final = ("--quiet", "-q")
"""The options that print the verdict alone."""

_streams: list[_Stream] = []
_quiet: list[bool] = []


def set_quiet(is_wanted: bool) -> bool:
    """Print the first line of the command's result alone from now on, and no progress; or everything."""
    _quiet[:] = [True] * is_wanted
    return is_wanted


def is_quiet() -> bool:
    """Return whether the command prints its verdict alone."""
    return bool(_quiet)


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
