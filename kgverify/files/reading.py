"""The one way in: every file that is read was opened here.

A file may come from a stranger. A named pipe or a terminal would block, a device has no end, a file under `/proc` has no
size, and a sparse file takes a terabyte of memory and no space on disk. All of them are refused before anything is read,
by the descriptor, so that nobody can exchange the file after it was checked.
"""

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources.abc import Traversable
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Final, cast

from kgverify.errors import UserError

MAX_BYTES: Final = 1 << 30
"""Bytes of a file that is read into memory as a whole, if nothing else is said."""
MAX_RATIO: Final = 64
"""Bytes in memory for each byte on disk. Text is seldom packed better than 20 to 1, numbers seldom better than 40 to 1."""
MIN_EXPANDED_BYTES: Final = 16 << 20
"""Bytes that any file may expand to, however small it is."""

_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
STANDARD_INPUT: Final = "-"
"""The path that the user types for standard input."""

_MAX_EXTENTS: Final = 1 << 10
_PIECE: Final = 1 << 20


def read_file(path: Traversable, *, purpose: str, max_bytes: int = MAX_BYTES, standard_input: bool = False) -> bytes:
    """Return the content of a file.

    Args:
        path: The file, or a resource of a package.
        purpose: What the file should be, such as "a budget", for errors.
        max_bytes: Longer files are refused before they are read.
        standard_input: Whether the user may have typed this path: then `-` is standard input.

    Raises:
        UserError: The file cannot be read, is not a regular file, or is too long.
    """
    if not isinstance(path, Path):
        with _translated(str(path), purpose), path.open("rb") as resource:
            return _read_at_most(cast(BufferedReader, resource), max_bytes, str(path))
    with open_file(path, purpose=purpose, max_bytes=max_bytes, standard_input=standard_input) as file:
        return _read_at_most(file, max_bytes, str(path))


@contextmanager
def open_file(
    path: Path, *, purpose: str, max_bytes: int | None = None, standard_input: bool = False
) -> Iterator[BufferedReader]:
    """Open a file and yield its bytes as a stream.

    Standard input is yielded as it is: it may have no end and no descriptor of a regular file.

    Args:
        path: The file.
        purpose: What the file should be, such as "a trace", for errors.
        max_bytes: Longer files are refused; None for any length.
        standard_input: Whether the user may have typed this path: then `-` is standard input.

    Raises:
        UserError: The file cannot be read, is not a regular file, or is too long.
    """
    where = str(path)
    if standard_input and where == STANDARD_INPUT:
        if sys.stdin is None:
            raise UserError("standard input is closed", where=where, fix=f"give the path of {purpose}")
        yield cast(BufferedReader, sys.stdin.buffer)
        return
    with (
        open_descriptor(path, purpose=purpose, max_bytes=max_bytes) as descriptor,
        os.fdopen(descriptor, "rb", closefd=False) as file,
    ):
        yield file


@contextmanager
def open_descriptor(path: Path, *, purpose: str, max_bytes: int | None = None) -> Iterator[int]:
    """Open a file as `open_file` does, and yield its descriptor."""
    where = str(path)
    with _translated(where, purpose):
        descriptor = os.open(path, _FLAGS)
    try:
        with _translated(where, purpose):
            _check_descriptor(descriptor, where, purpose, max_bytes)
        yield descriptor
    finally:
        os.close(descriptor)


def _check_descriptor(descriptor: int, where: str, purpose: str, max_bytes: int | None) -> None:
    """Raise a UserError unless an open file is a regular one whose bytes are on disk."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise UserError(
            f"is {_name_kind(status.st_mode)}, expected a regular file", where=where, fix=f"give the path of {purpose}"
        )
    if status.st_dev in _devices_without_files() or (not status.st_size and os.pread(descriptor, 1, 0)):
        raise UserError(
            "is made by the system while it is read, expected a file on disk",
            where=where,
            fix=f"give the path of {purpose}",
        )
    if max_bytes is not None and status.st_size > max_bytes:
        raise _too_long(f"{status.st_size:,} bytes", max_bytes, where)
    if status.st_size > MIN_EXPANDED_BYTES and _is_sparse(descriptor, status.st_size):
        raise UserError(
            f"says that it takes {status.st_size:,} bytes, but is almost empty on disk",
            where=where,
            fix=f"give {purpose} that was written as a whole",
        )
    os.lseek(descriptor, 0, os.SEEK_SET)


def _devices_without_files() -> set[int]:
    """Return the devices of the file systems whose files are no files."""
    found = {os.stat(folder).st_dev for folder in ("/proc", "/sys") if os.path.isdir(folder)}
    # Without such a file system the folder, if there is one, lies on the disk.
    return found - {os.stat("/").st_dev}


def _name_kind(mode: int) -> str:
    kinds = {
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFDIR: "a folder",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    return kinds.get(stat.S_IFMT(mode), "a special file")


def _is_sparse(descriptor: int, size: int) -> bool:
    """Return whether a file has more bytes for each byte on disk than `MAX_RATIO`."""
    if not hasattr(os, "SEEK_DATA"):
        return False
    position = stored = 0
    for _ in range(_MAX_EXTENTS):
        try:
            begin = os.lseek(descriptor, position, os.SEEK_DATA)
            position = os.lseek(descriptor, begin, os.SEEK_HOLE)
        except OSError:
            # Only a hole follows.
            break
        stored += position - begin
        if stored * MAX_RATIO >= size:
            return False
    return True


def _read_at_most(file: BufferedReader, max_bytes: int, where: str) -> bytes:
    """Read to the end. UserError if that is more than is allowed."""
    content = BytesIO()
    while piece := file.read(_PIECE):
        if content.tell() + len(piece) > max_bytes:
            raise _too_long(f"more than {max_bytes:,} bytes", max_bytes, where)
        content.write(piece)
    return content.getvalue()


def _too_long(found: str, max_bytes: int, where: str) -> UserError:
    return UserError(
        f"takes {found}, expected at most {max_bytes:,}", where=where, fix="give a shorter file, or split this one"
    )


@contextmanager
def _translated(where: str, purpose: str) -> Iterator[None]:
    """Turn an error of the system into a UserError."""
    try:
        yield
    except OSError as error:
        message = f"cannot be read: {error.strerror or error}"
    except ValueError:
        message = "cannot be read: the path holds the character NUL"
    else:
        return
    raise UserError(message, where=where, fix=f"give the path of {purpose}, and check its permissions")
