"""Files in object stores, by URL: every one is copied to or from a local folder, and checked there as any other.

An object appears in its store whole or not at all. Several objects do not appear together, so the one that makes the others
count, such as a manifest, is sent last. A URL is what a user typed: no file can name one.
"""

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from kgverify.errors import UserError, describe_error, show_path_as
from kgverify.files.stores import DRIVERS, describe_answer, open_store, stream
from kgverify.files.writing import temporary_folder

T = TypeVar("T")

_URL: Final = re.compile(rf"(?P<protocol>{'|'.join(DRIVERS)}|file):/+(?P<rest>.*)", re.DOTALL)
"""A URL; as a `Path` it has one slash."""
_OTHER: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_NAME: Final = re.compile(r"[^/\\\0]{1,255}")
_PIECE: Final = 64 << 20
"""Bytes for which a store is asked at once."""
_THREADS: Final = 4
_MOST_FILES: Final = 100_000


class Sizes(NamedTuple):
    """The bytes of a file, None for a folder, and those of the files of a folder by name."""

    file: int | None
    files: dict[str, int]

    @property
    def total(self) -> int:
        """The bytes of all files."""
        return sum(self.files.values()) + (self.file or 0)


@dataclass(frozen=True)
class Remote:
    """A file or folder of an object store. key: `bucket/folder/name`."""

    protocol: str
    key: str

    @property
    def url(self) -> str:
        """The URL."""
        return f"{self.protocol}://{self.key}"

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.key.rpartition("/")[2]

    def join(self, name: str) -> "Remote":
        """Return a file of this folder."""
        return Remote(self.protocol, f"{self.key}/{name}")

    def exists(self) -> bool:
        """Return whether there is such an object, or a folder. UserError if the store cannot be asked."""
        with self._explained("cannot be read"):
            return bool(self._store().exists(self.key))

    def list_files(self) -> dict[str, int]:
        """Return the names of a folder's files, without its folders, and their bytes; none if there is no such folder.

        UserError for a name that no file on a disk can have.
        """
        with self._explained("cannot be read"):
            store = self._store()
            return self._list(store) if store.exists(self.key) else {}

    def measure(self) -> "Sizes":
        """Return the sizes of a file, or of the files of a folder. UserError if it does not exist or cannot be read."""
        with self._explained("cannot be read"):
            store = self._store()
            kind, size = self._describe(store)
            if not kind:
                raise UserError("no such file or folder", where=self.url, fix="check the URL, and the credentials")
            return Sizes(None, self._list(store)) if kind == "directory" else Sizes(size, {})

    def fetch(self, folder: Path, sizes: "Sizes | None" = None) -> Path:
        """Copy a file, or the files of a folder, into a local folder, and return the path of the copy there.

        sizes: as `measure` returned them

        Errors show the copy under its URL. UserError if it does not exist, cannot be read, or the disk is too small.
        """
        with self._explained("cannot be read"):
            sizes = sizes or self.measure()
            free = shutil.disk_usage(folder).free
            if sizes.total > free:
                raise UserError(
                    f"takes {sizes.total:,} bytes, and {folder} has room for {free:,}",
                    where=self.url,
                    fix="make room, or let TMPDIR name a folder on a larger disk",
                )
            copy = folder / self.name
            show_path_as(str(copy), self.url)
            if sizes.file is not None:
                files = [(self, copy, sizes.file)]
            else:
                copy.mkdir(exist_ok=True)
                files = [(self.join(name), copy / name, size) for name, size in sizes.files.items()]
            _copy_files(self._store(), files)
            return copy

    def send(self, source: Path, *, last: str = "") -> None:
        """Replace the object by a local file, or the objects of a folder by the files of a local one.

        last: the name of the file without which a folder counts for nothing; it is deleted first, and sent after all others

        UserError if an object cannot be written.
        """
        with self._explained("cannot be written"):
            store = self._store()
            if not source.is_dir():
                for name in sorted(self.list_files(), key=lambda name: name != last) if store.isdir(self.key) else ():
                    store.rm_file(self.join(name).key)
                self._put(store, source)
                return
            kind, _ = self._describe(store)
            if kind == "file":
                store.rm_file(self.key)
            names = sorted(path.name for path in source.iterdir())
            found = self._list(store).keys() if kind == "directory" else set()
            for name in [*({last} & found), *(found - {last, *names})]:
                store.rm_file(self.join(name).key)
            _do_all(lambda name: self.join(name)._put(store, source / name), set(names) - {last})
            if last in names:
                self.join(last)._put(store, source / last)

    def send_file(self, source: Path) -> None:
        """Do as `send` for a file where no folder can be, with fewer requests."""
        with self._explained("cannot be written"):
            self._put(self._store(), source)

    def check_writable(self) -> None:
        """Raise the UserError of `send` before a long run, if it would raise one already. Leave nothing."""
        probe = Remote(self.protocol, f"{self.key}.kgverify-{os.urandom(8).hex()}")
        with self._explained("cannot be written"):
            store = self._store()
            store.pipe_file(probe.key, b"")
            store.rm_file(probe.key)

    def _describe(self, store: Any) -> tuple[str, int]:
        """Return `file` or `directory`, and the bytes of a file; an empty text if there is neither."""
        try:
            info = store.info(self.key)
        except FileNotFoundError:
            return "", 0
        return info["type"], int(info["size"] or 0)

    def _list(self, store: Any) -> dict[str, int]:
        """Do as `list_files` for a folder that exists."""
        found = store.ls(self.key, detail=True)
        sizes = {each["name"].rpartition("/")[2]: int(each["size"] or 0) for each in found if each["type"] == "file"}
        # Some stores list the folder itself as an object without a name.
        sizes.pop("", None)
        if len(sizes) > _MOST_FILES:
            raise UserError(f"holds {len(sizes):,} files, expected at most {_MOST_FILES:,}", where=self.url)
        for name in sizes:
            if not _NAME.fullmatch(name) or name in (".", ".."):
                raise UserError(f"holds a file with the name {name!r}", where=self.url, fix="rename it")
        return sizes

    def _copy_piece(self, store: Any, target: Path, size: int, begin: int) -> None:
        """Copy some bytes into a file of this size."""
        end = min(begin + _PIECE, size)
        descriptor = os.open(target, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            # One byte more than there should be: an object that has grown must not look like the one that was listed.
            for piece in stream(store, self.key, begin, end + (end == size)):
                left = memoryview(piece)
                if len(left) > end - begin:
                    raise self._changed()
                while left:
                    num = os.pwrite(descriptor, left, begin)
                    begin, left = begin + num, left[num:]
        finally:
            os.close(descriptor)
        if begin != end:
            raise self._changed()

    def _changed(self) -> UserError:
        return UserError("was replaced while it was read", where=self.url, fix="read it again")

    def _put(self, store: Any, source: Path) -> None:
        store.put_file(str(source), self.key)
        size = int(store.info(self.key)["size"])
        if size != source.stat().st_size:
            raise OSError(f"the store holds {size:,} bytes of {source.stat().st_size:,}")

    def _store(self) -> Any:
        return open_store(self.protocol, self.key)

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """Raise a UserError in place of the errors of a store, which are of many types."""
        try:
            yield
        except (UserError, MemoryError):
            raise
        except Exception as error:
            raise UserError(
                f"{what}: {describe_answer(error) or describe_error(error)}",
                where=self.url,
                fix="check the URL, the network, and the credentials of this store in the environment",
            ) from error


def find_remote(path: object) -> Remote | None:
    """Return the object that a URL names; None for a local path, `file://` included. UserError for other URLs."""
    text = str(path) if isinstance(path, (str, Path)) else ""
    found = _URL.fullmatch(text)
    if found is None:
        if _OTHER.match(text):
            protocol = text.partition("://")[0]
            raise UserError(
                f"{protocol}:// is not supported",
                where=text,
                fix=f"copy it to a local path, or to one of: file, {', '.join(DRIVERS)}",
            )
        return None
    if found["protocol"] == "file":
        return None
    key = found["rest"].rstrip("/")
    if not key or "::" in key or any(part in ("", ".", "..") for part in key.split("/")) or "\0" in key:
        raise UserError(
            "expected a URL such as s3://bucket/folder/name", where=text, fix="give the names of bucket and object"
        )
    return Remote(found["protocol"], key)


def names_url(path: str | Path) -> bool:
    """Return whether a path is a URL, `file://` included. UserError as for `find_remote`."""
    return find_remote(path) is not None or _URL.fullmatch(str(path)) is not None


def find_local(path: str | Path) -> Path:
    """Return a local path as such, also if it was given as `file://`. UserError for a URL of another machine."""
    found = _URL.fullmatch(str(path))
    if found is None or found["protocol"] != "file":
        return Path(path)
    if isinstance(path, str) and path.startswith("file://") and not path.startswith(("file:///", "file://localhost/")):
        raise UserError("names another machine", where=path, fix="give file:///FOLDER/NAME")
    return Path("/" + found["rest"].removeprefix("localhost/") if isinstance(path, str) else "/" + found["rest"])


@contextmanager
def fetched(path: str | Path) -> Iterator[Path]:
    """Yield the local path, or the path of a copy that is deleted when the context ends. UserError as by `Remote.fetch`.

    A copy is not forced to disk, so that one that is deleted soon stays in memory, in the cache of the system.
    """
    remote = find_remote(path)
    if remote is None:
        yield find_local(path)
        return
    with temporary_folder("kgverify-copy-") as folder:
        yield remote.fetch(folder)


@contextmanager
def scratch_folder(remote: Remote) -> Iterator[Path]:
    """Yield a local folder of this user for what is to be sent. It is deleted if no error leaves the context.

    The same URL has the same folder, so that a command that was interrupted can resume on the same machine.
    """
    name = f"kgverify-{os.getuid()}-{sha256(remote.url.encode()).hexdigest()[:16]}"
    folder = Path(tempfile.gettempdir()) / name
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise UserError(
                "is in the way, and is not a private folder of this user",
                where=str(folder),
                fix="delete it, or let TMPDIR name a folder of your own",
            ) from None
    except OSError as error:
        raise UserError(
            f"temporary files cannot be written: {error.strerror}",
            where=str(folder),
            fix="make room, or let TMPDIR name a folder that can be written",
        ) from error
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def sent_to(remote: Remote, last: str) -> Iterator[Path]:
    """Yield a local path to fill. When the context ends without an error, what is there is sent as `Remote.send` does."""
    with scratch_folder(remote) as folder:
        yield folder / remote.name
        remote.send(folder / remote.name, last=last)


def _copy_files(store: Any, files: Sequence[tuple[Remote, Path, int]]) -> None:
    """Copy objects of these sizes to new files, several pieces at the same time. UserError if one changes meanwhile."""
    for _, target, _ in files:
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    # One request returns one version of an object.
    large = [remote for remote, _, size in files if size > _PIECE]
    before = [_version_of(store, remote.key) for remote in large]
    pieces = [(*file, begin) for file in files for begin in range(0, file[2], _PIECE)]
    _do_all(lambda piece: piece[0]._copy_piece(store, *piece[1:]), pieces)
    for remote, version in zip(large, before, strict=True):
        if _version_of(store, remote.key) != version:
            raise remote._changed()


def _version_of(store: Any, key: str) -> tuple[Any, ...]:
    """Return what changes if an object is replaced."""
    info = store.info(key)
    return tuple(
        str(info.get(name)) for name in ("size", "ETag", "etag", "LastModified", "mtime", "created", "md5Hash")
    )


def _do_all(work: Callable[[T], None], items: Iterable[T]) -> None:
    """Do the work on several items at the same time. The first error is raised, once no work is left."""
    with ThreadPoolExecutor(_THREADS) as executor:
        for _ in executor.map(work, items):
            pass
