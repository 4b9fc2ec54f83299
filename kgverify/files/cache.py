"""The folder in which kgverify keeps what later processes reuse: it believes its owner only."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from kgverify.errors import UserError
from kgverify.files.reading import open_descriptor
from kgverify.files.writing import write_file

CACHE: Final = "KGVERIFY_CACHE"
"""The environment variable with the folder; empty: nothing is kept."""


def find_cache() -> Path | None:
    """Return the folder, which need not exist; None if nothing is kept."""
    named = os.environ.get(CACHE)
    if named is not None:
        return Path(named) if named else None
    base = os.environ.get("LOCALAPPDATA" if os.name == "nt" else "XDG_CACHE_HOME")
    with suppress(RuntimeError):
        return (Path(base) if base else Path.home() / ".cache") / "kgverify"
    return None


def is_private(path: Path) -> bool:
    """Return whether a path belongs to this user, and only this user and root can change it or a folder above it."""
    with suppress(OSError):
        path = path.resolve()
        above = [each.lstat() for each in path.parents]
        return _is_own(path.lstat()) and all(
            each.st_uid in (0, os.geteuid()) and (each.st_mode & stat.S_ISVTX or not _is_shared(each)) for each in above
        )
    return False


def make_private(folder: Path) -> None:
    """Create a folder and those above it that are missing, for this user only. OSError as `os.mkdir`."""
    for each in (*reversed(folder.parents), folder):
        if not each.exists():
            each.mkdir(mode=0o700)


def has_mark(path: Path | None) -> bool:
    """Return whether `keep_mark` left a file, which nobody else can have put there."""
    return path is not None and path.is_file() and is_private(path)


def keep_mark(path: Path | None, text: str) -> None:
    """Write a file that says what was done, for later processes, if possible."""
    with suppress(OSError, UserError):
        if path is not None:
            make_private(path.parent)
            write_file(path, f"{text}\n")


@contextmanager
def open_private(path: Path, *, purpose: str, max_bytes: int | None = None) -> Iterator[int]:
    """Open a file of a cache once, and yield its descriptor. UserError unless only this user and root can change it."""
    with open_descriptor(path, purpose=purpose, max_bytes=max_bytes) as descriptor:
        if not (_is_own(os.fstat(descriptor)) and is_private(path.parent)):
            raise UserError(
                "belongs to others, or they can replace it",
                where=str(path),
                fix=f"let {CACHE} name a folder that only you can write, like all folders above it",
            )
        yield descriptor


def _is_own(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not _is_shared(status)


def _is_shared(status: os.stat_result) -> bool:
    """Return whether others may write to a file or folder."""
    return bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
