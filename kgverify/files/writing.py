"""The one way out to disk: a file appears whole or not at all, no link is followed, and every failure names its remedy.

A file is written under an unpredictable name in the folder of its target, and then renamed. The target stays
unchanged until then. Folders that the user names may be links, for example to a larger disk. The target itself may not be a
link: renaming would replace the link, and writing through it would change a file that somebody else may have chosen.
"""

import ctypes
import errno
import os
import re
import secrets
import shutil
import socket
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Self
from weakref import WeakSet

from kgverify.errors import NotWritten, UserError, find_missing_dependency

try:
    import fcntl
except ModuleNotFoundError as error:
    raise find_missing_dependency(error) or error from None

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a pipe would wait for its reader.
_EXISTING: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_SHOWN_NAME: Final = 40
STAGED: Final = ".kgverify-staged-"
"""The prefix of the names of folders that `staging_folder` makes."""
_TEMPORARY: Final = re.compile(r"\..*\.[0-9a-f]{8}-[0-9a-f]{16}\.tmp", re.DOTALL)
_STREAM: Final = re.compile(r"/dev/(stdout|stderr)|(?:/dev|/proc/self)/fd/(\d+)")
"""Names of open descriptors, which the system shows as links."""

_URL: Final = re.compile(r"(?:s3|gs|gcs|az|abfs|abfss|memory|file):/")
"""The beginning of a URL after a `Path` has removed a slash."""

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_FIXES: Final = {
    errno.ENOENT: "give a path in a folder that exists",
    errno.ENOTDIR: "give a path in a folder that exists",
    errno.EISDIR: "give the path of a file",
    errno.ENAMETOOLONG: "give a shorter name",
    errno.EFBIG: "raise the limit of the size of files (ulimit -f)",
    errno.EIO: "check the disk, or choose a path on another one",
    errno.EROFS: "choose a path on a disk that can be written",
    errno.ENXIO: "start the reader of the pipe first, or name a file",
    errno.ELOOP: "give the path of the file itself",
}


def write_file(path: Path | str, content: bytes | str, *, is_durable: bool = False) -> None:
    """Replace a file atomically, or write to a device or a pipe. UserError if it cannot be written.

    is_durable: force the file to disk, so that a crash of the machine does not lose it
    """
    path = Path(path)
    encoded = content.encode() if isinstance(content, str) else content
    with explained(path, kept=_unchanged(path), num_bytes=len(encoded)):
        if is_special(path):
            _write_special(path, encoded)
            return
        with renamed_into(path, is_durable=is_durable) as temporary:
            _fill(os.open(temporary, os.O_WRONLY | _EXISTING), encoded)


def append_to_file(path: Path | str, content: bytes) -> None:
    """Append all or nothing to a file, which need not exist. UserError if it cannot be written."""
    path = Path(path)
    with explained(path, num_bytes=len(content)):
        if is_special(path):
            _write_special(path, content)
            return
        descriptor = open_in_place(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            size = os.fstat(descriptor).st_size
            try:
                _write_all(descriptor, content)
            except OSError:
                # Text after half a line would be lost as well.
                os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)


@contextmanager
def replaced(path: Path | str, *, is_durable: bool = False) -> Iterator[Path]:
    """Yield a path to fill, an empty file, that replaces `path` when the context ends; an error leaves `path` as it was.

    UserError if it cannot be written.
    """
    path = Path(path)
    with explained(path, kept=_unchanged(path)), renamed_into(path, is_durable=is_durable) as temporary:
        yield temporary


@contextmanager
def renamed_into(
    path: Path,
    *,
    is_durable: bool = False,
    rename: Callable[[Path, Path], object] | None = None,
) -> Iterator[Path]:
    """Do the same as `replaced`, but leave an OSError to the caller, who knows what was kept.

    rename: puts the file in place; with it, `path` may be a folder
    """
    mode = None if rename is not None and path.is_dir() else _check_target(path)
    temporary = temporary_beside(path)
    descriptor = os.open(temporary, _NEW, 0o666)
    try:
        try:
            if mode is not None:
                with suppress(PermissionError):
                    # Some file systems have no permissions.
                    os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)
        yield temporary
        if is_durable:
            sync_file(temporary)
        (rename or Path.replace)(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    if is_durable:
        sync_folder(path.parent)


def open_in_place(path: Path, flags: int) -> int:
    """Open a file that is changed in place and return its descriptor.

    UserError for a symbolic or hard link, and for anything but a regular file; OSError as for `os.open`.
    """
    refuse_link(path)
    descriptor = os.open(path, flags | _EXISTING, 0o666)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(descriptor)
        what = "has a second name (a hard link)" if stat.S_ISREG(found.st_mode) else "is not a regular file"
        raise UserError(f"{what}, so it is not written to", where=str(path), fix="delete it, or give another path")
    return descriptor


def make_folder(path: Path) -> None:
    """Create a folder if it does not exist, and force its name to disk. UserError for a link; OSError as for `os.mkdir`."""
    refuse_link(path)
    if not path.is_dir():
        path.mkdir()
        sync_folder(path.parent)


def make_folders(path: Path) -> list[Path]:
    """Create a folder with its parents, and return those created, the outermost first. UserError if that fails.

    Existing folders may be links.
    """
    if _URL.match(str(path)):
        refuse_link(path)
    missing = [each for each in (path, *path.parents) if not os.path.exists(each)]
    made: list[Path] = []
    for each in reversed(missing):
        with explained(each):
            refuse_link(each)
            each.mkdir(exist_ok=True)
        made.append(each)
    if not os.path.isdir(path):
        raise UserError("is not a folder", where=str(path), fix="give the path of a folder")
    return made


@contextmanager
def temporary_folder(prefix: str, folder: str | None = None) -> Iterator[Path]:
    """Yield a new folder inside a folder for temporary files, by default the system's; delete it afterwards.

    UserError if it cannot be created, or if the disk becomes full inside the context.
    """
    is_created = False
    try:
        with TemporaryDirectory(prefix=prefix, dir=folder, ignore_cleanup_errors=True) as name:
            is_created = True
            yield Path(name)
    except OSError as error:
        if is_created and error.errno not in (*_FULL, errno.EFBIG, errno.EIO):
            raise
        where = folder or tempfile.tempdir or os.environ.get("TMPDIR", "/tmp")
        raise name_error(error)(
            f"temporary files cannot be written: {describe_write_error(error, Path(where))}",
            where=where,
            fix="make room, or let TMPDIR name a folder that can be written",
        ) from error


@contextmanager
def staging_folder(folder: Path) -> Iterator[Path]:
    """Yield a new folder inside another one, for files that are renamed together; delete it afterwards.

    The caller must hold the lock of the outer folder, since leftovers of killed processes are deleted there.
    """
    for left in folder.glob(f"{STAGED}*"):
        shutil.rmtree(left, ignore_errors=True)
    staged = folder / f"{STAGED}{secrets.token_hex(8)}"
    staged.mkdir()
    try:
        yield staged
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def check_writable(path: Path | str) -> None:
    """Raise the UserError that `write_file` would raise now, before a long run. Leave nothing behind."""
    path = Path(path)
    if is_special(path):
        # Opening and closing a pipe would tell its reader that the output is complete.
        return
    with explained(path):
        _check_target(path)
        _check_folder(path.parent)


def check_folder(folder: Path) -> None:
    """Raise UserError unless files can be written in a folder, or it can be created. Leave nothing behind."""
    existing = next(each for each in (folder, *folder.absolute().parents) if os.path.exists(each))
    try:
        _check_folder(existing)
    except OSError as error:
        raise UserError(
            f"cannot write in this folder: {error.strerror}",
            where=str(folder),
            fix="give a folder, or a path where one can be created",
        ) from None


def refuse_link(path: Path) -> None:
    """Raise a UserError for a symbolic link, which could point to any file of this machine, and for a URL."""
    if _URL.match(str(path)):
        raise UserError(
            "is a URL, where only `kgverify record` writes",
            where=str(path),
            fix="give a local path, and copy the result",
        )
    if os.path.islink(path):
        raise UserError(
            "is a link, which is not followed", where=str(path), fix="give the path that it points to, or delete it"
        )


def remove_temporary(folder: Path, output: Path | None = None) -> None:
    """Delete what killed processes left in a folder while replacing one output, or any. The caller must hold its lock."""
    known = "" if output is None else _temporary_prefix(output)
    with suppress(OSError):
        for found in os.scandir(folder):
            if found.name.startswith(known) and is_temporary(found.name):
                remove_tree(Path(found))


def remove_tree(path: Path) -> None:
    """Delete a file or a folder, if it exists. OSError as for `os.unlink`."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def is_temporary(name: str) -> bool:
    """Return whether a name was made by `temporary_beside`."""
    return _TEMPORARY.fullmatch(name) is not None


def temporary_beside(path: Path) -> Path:
    """Return a new name beside an output, which `remove_temporary` deletes after a kill."""
    return path.with_name(f"{_temporary_prefix(path)}{secrets.token_hex(8)}.tmp")


def exchange(first: Path, second: Path) -> None:
    """Exchange the names of two files or folders atomically. OSError if the system does not support it."""
    libc = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(first), os.fsencode(second)
    is_linux = sys.platform == "linux"
    try:
        failed = libc.renameat2(-100, names[0], -100, names[1], 2) if is_linux else libc.renamex_np(*names, 2)
    except AttributeError:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), str(second)) from None
    if failed:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(second))


def sync_file(path: Path) -> None:
    """Force a file to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to the disk."""
    sync_file(folder)


@contextmanager
def explained(path: Path, *, kept: str = "", num_bytes: int | None = None) -> Iterator[None]:
    """Replace an OSError by a UserError that says what to do.

    kept:      what is safe, such as "the source is unchanged"
    num_bytes: the size of the content, if known
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if not is_special(path):
            reason = describe_write_error(error, path.parent, num_bytes)
        fix = _FIXES.get(error.errno or 0, f"check the permissions of {path.absolute().parent}, or give another path")
        if error.errno in _FULL:
            fix = "make room, or choose a path on another disk"
        message = f"cannot be written: {reason}{'; ' if kept else ''}{kept}"
        raise name_error(error)(message, where=str(path), fix=fix) from error


def name_error(error: OSError) -> type[UserError]:
    """Return the kind of error that a failed write is: the disk is full, or the path is wrong."""
    return NotWritten if error.errno in _FULL else UserError


def describe_write_error(error: OSError, folder: Path, num_bytes: int | None = None) -> str:
    """Return the reason for a failed write; for a full disk, add the free space, and the space needed, if known."""
    reason = error.strerror or str(error)
    if error.errno == errno.ENOSPC:
        with suppress(OSError):
            needed = "" if num_bytes is None else f", {num_bytes:,} needed"
            reason += f" ({shutil.disk_usage(folder).free:,} bytes free{needed})"
    return reason


def is_special(path: Path) -> bool:
    """Return whether a path is a device or a pipe, which cannot be replaced."""
    if _STREAM.fullmatch(str(path)):
        return True
    try:
        mode = path.lstat().st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def _unchanged(path: Path) -> str:
    return "the file that was there is unchanged" if os.path.isfile(path) else ""


def _write_special(path: Path, content: bytes) -> None:
    if stream := _STREAM.fullmatch(str(path)):
        # If opened again, a file would be overwritten from its beginning.
        number = {"stdout": 1, "stderr": 2}[stream[1]] if stream[1] else int(stream[2])
        sys.stdout.flush()
        descriptor = os.dup(number)
    else:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        os.set_blocking(descriptor, True)
    _fill(descriptor, content)


def _fill(descriptor: int, content: bytes) -> None:
    """Write to an open file, and close it."""
    try:
        _write_all(descriptor, content)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]


def _check_target(path: Path) -> int | None:
    """Return the permissions of a file that may be replaced; None if there is no file.

    UserError for a link; OSError for anything but a regular file, and for a file without write permission.
    """
    refuse_link(path)
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    if not os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        # Renaming does not check the permissions of the file itself.
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    return stat.S_IMODE(mode) & 0o777


def _check_folder(folder: Path) -> None:
    """Raise an OSError unless files can be created in a folder."""
    temporary = temporary_beside(folder / "check")
    os.close(os.open(temporary, _NEW, 0o600))
    temporary.unlink()


def _temporary_prefix(path: Path) -> str:
    """Return the prefix of all temporary names of one target, which no other target has. It is short even for a long name."""
    return f".{path.name[:_SHOWN_NAME]}.{sha256(os.fsencode(path.name)).hexdigest()[:8]}-"


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
                    # The holder deleted the file in the meantime.
                    continue
                with suppress(OSError):
                    # On a full disk, the file does not name the holder.
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


# A child process would hold the lock as long as it lives, even if its parent is killed.
os.register_at_fork(after_in_child=_close_in_child)


@contextmanager
def locked_folder(folder: Path, what: str, *, fix: str = "") -> Iterator[None]:
    """Create a folder if it does not exist, and lock it; delete it again if it stays empty.

    Files that killed processes left half-written there are deleted. UserError if the folder cannot be created, or another
    process holds the lock.
    """
    made = make_folders(folder)
    try:
        check_folder(folder)
        with OutputLock(folder / FOLDER_LOCK, folder, what, fix=fix):
            remove_temporary(folder)
            yield
    finally:
        with suppress(OSError):
            for each in reversed(made):
                each.rmdir()


def lock_beside(output: Path, what: str) -> OutputLock:
    """Lock an output that renaming may replace, with a file beside it. UserError if another process holds the lock."""
    return OutputLock(output.with_name(f".{output.name}.lock"), output, what)


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
    """Return `another process (7 on HOST)` for the content of a lock file; omit number and host if the content lacks them."""
    number, _, host = content.removeprefix(_MARK).decode("ascii", "replace").strip().partition(" ")
    if not (number.isdecimal() and host.replace("-", "").replace(".", "").isalnum()):
        return "another process"
    is_own = (int(number), host) == (os.getpid(), socket.gethostname())
    return "this process" if is_own else f"another process ({number} on {host})"
