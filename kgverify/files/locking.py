"""One lock per output: of two processes that write the same trace or folder, the second one ends with an error.

A lock is an open file, which the system unlocks when the process that holds it ends in any way. Its content names that
process. On a file system without locks nothing is locked.
"""

import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Self
from weakref import WeakSet

from kgverify.errors import UserError
from kgverify.files.writing import check_folder, explained, make_folders, open_in_place

FOLDER_LOCK: Final = ".kgverify.lock"
_MARK: Final = b"kgverify "
_MAX_BYTES: Final = 256
_UNSUPPORTED: Final = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class OutputLock:
    """The lock of an output, held until `release`, the end of a context, or the end of the process."""

    def __init__(self, path: Path, output: Path, what: str, *, fix: str = "") -> None:
        """Take a lock. UserError if another process holds it, or the file cannot be made.

        Args:
            path: The file that is locked.
            output: The output, for the error.
            what: What is written there, such as "this trace".
            fix: The advice to the user if another process holds the lock.
        """
        self._path, self._descriptor = path, -1
        while self._descriptor < 0:
            with explained(output):
                descriptor = open_in_place(path, os.O_RDWR | os.O_CREAT)
            try:
                content = os.pread(descriptor, _MAX_BYTES, 0)
                if content and not content.startswith(_MARK):
                    raise UserError("is not a lock of kgverify", where=str(path), fix="move it, or give another path")
                if not _lock(descriptor):
                    raise UserError(
                        f"{_name_holder(content)} is writing {what}",
                        where=str(output),
                        fix=fix or "wait until it ends, or give another path",
                    )
                if not _is_same_file(descriptor, path):
                    # Its holder deleted it in the meantime.
                    continue
                with suppress(OSError):
                    # On a full disk the holder has no name.
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, _MARK + f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
                self._descriptor, descriptor = descriptor, -1
            finally:
                if descriptor >= 0:
                    os.close(descriptor)
        _held.add(self)

    def release(self) -> None:
        """Delete the file, and unlock it; a second call does nothing."""
        if self._descriptor >= 0:
            with suppress(OSError):
                if _is_same_file(self._descriptor, self._path):
                    self._path.unlink()
            self.close()

    def close(self) -> None:
        """Close the file without deleting it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()


_held: WeakSet[OutputLock] = WeakSet()


def _close_in_child() -> None:
    for lock in list(_held):
        lock.close()


# A child would hold the lock as long as it lives, even if its parent was killed.
os.register_at_fork(after_in_child=_close_in_child)


@contextmanager
def locked_folder(folder: Path, what: str, *, fix: str = "") -> Iterator[None]:
    """Create a folder if it does not exist, and lock it; delete it again if it stays empty.

    UserError if it cannot be created, or another process holds the lock.
    """
    made = make_folders(folder)
    try:
        check_folder(folder)
        with OutputLock(folder / FOLDER_LOCK, folder, what, fix=fix):
            yield
    finally:
        with suppress(OSError):
            for each in reversed(made):
                each.rmdir()


def lock_beside(output: Path, what: str, *, fix: str = "") -> OutputLock:
    """Lock an output that may be replaced by renaming, by a file beside it. UserError if another process holds the lock."""
    return OutputLock(output.with_name(f".{output.name}.lock"), output, what, fix=fix)


def _lock(descriptor: int) -> bool:
    """Lock an open file; return whether no other process holds the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        if error.errno not in _UNSUPPORTED:
            raise
    return True


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def _name_holder(content: bytes) -> str:
    """Return `another process (7 on HOST)` for the content of a lock; without number and host if it does not show them."""
    number, _, host = content.removeprefix(_MARK).decode("ascii", "replace").strip().partition(" ")
    if not (number.isdecimal() and host.replace("-", "").replace(".", "").isalnum()):
        return "another process"
    is_own = (int(number), host) == (os.getpid(), socket.gethostname())
    return "this process" if is_own else f"another process ({number} on {host})"
