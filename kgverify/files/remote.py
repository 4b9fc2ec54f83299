"""Files in object stores, by URL: every one is copied to or from a local folder, and checked there as any other.

An object appears in its store whole or not at all. Several objects do not appear together, so the one that makes the others
count, such as a manifest, is sent last. A URL is what a user typed: no file can name one.
"""

import importlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeVar

from kgverify.errors import MissingDependency, UserError, describe_error, find_missing_dependency, show_path_as
from kgverify.files.writing import temporary_folder

T = TypeVar("T")

DRIVERS: Final = {
    "s3": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
    "memory": "fsspec",
}
"""The stores that replace an object at once, and the package that knows each."""

_URL: Final = re.compile(rf"(?P<protocol>{'|'.join(DRIVERS)}|file):/+(?P<rest>.*)", re.DOTALL)
"""A URL; as a `Path` it has one slash."""
_OTHER: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_NAME: Final = re.compile(r"[^/\\\0]{1,255}")
_PIECE: Final = 16 << 20
"""Bytes that are read at once."""
_THREADS: Final = 4
_MOST_FILES: Final = 100_000


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
            found = store.ls(self.key, detail=True) if store.exists(self.key) else []
        sizes = {each["name"].rpartition("/")[2]: int(each["size"] or 0) for each in found if each["type"] == "file"}
        # Some stores list the folder itself as an object without a name.
        sizes.pop("", None)
        if len(sizes) > _MOST_FILES:
            raise UserError(f"holds {len(sizes):,} files, expected at most {_MOST_FILES:,}", where=self.url)
        for name in sizes:
            if not _NAME.fullmatch(name) or name in (".", ".."):
                raise UserError(f"holds a file with the name {name!r}", where=self.url, fix="rename it")
        return sizes

    def fetch(self, folder: Path) -> Path:
        """Copy a file, or the files of a folder, into a local folder, and return the path of the copy there.

        Errors show the copy under its URL. UserError if it does not exist, cannot be read, or the disk is too small.
        """
        with self._explained("cannot be read"):
            store = self._store()
            if not store.exists(self.key):
                raise UserError("no such file or folder", where=self.url, fix="check the URL, and the credentials")
            is_folder = store.isdir(self.key)
            sizes = self.list_files() if is_folder else {"": int(store.info(self.key)["size"])}
            free = shutil.disk_usage(folder).free
            if sum(sizes.values()) > free:
                raise UserError(
                    f"takes {sum(sizes.values()):,} bytes, and {folder} has room for {free:,}",
                    where=self.url,
                    fix="make room, or let TMPDIR name a folder on a larger disk",
                )
            copy = folder / self.name
            show_path_as(str(copy), self.url)
            if not is_folder:
                self._fetch_file(store, copy, sizes[""])
                return copy
            copy.mkdir(exist_ok=True)
            for name, size in sizes.items():
                self.join(name)._fetch_file(store, copy / name, size)
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
                self._send_file(store, source)
                return
            if store.isfile(self.key):
                store.rm_file(self.key)
            names = sorted(path.name for path in source.iterdir())
            stale = self.list_files().keys() - set(names)
            for name in [*({last} & self.list_files().keys()), *stale]:
                store.rm_file(self.join(name).key)
            _do_all(lambda name: self.join(name)._send_file(store, source / name), set(names) - {last})
            if last in names:
                self.join(last)._send_file(store, source / last)

    def check_writable(self) -> None:
        """Raise the UserError of `send` before a long run, if it would raise one already. Leave nothing."""
        probe = Remote(self.protocol, f"{self.key}.kgverify-{os.urandom(8).hex()}")
        with self._explained("cannot be written"):
            store = self._store()
            store.pipe_file(probe.key, b"")
            store.rm_file(probe.key)

    def _fetch_file(self, store: Any, target: Path, size: int) -> None:
        before = _version_of(store, self.key)
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:

            def fetch_piece(begin: int) -> None:
                end = min(begin + _PIECE, size)
                piece = store.cat_file(self.key, start=begin, end=end)
                if len(piece) != end - begin:
                    raise self._changed()
                left = memoryview(piece)
                while left:
                    num = os.pwrite(descriptor, left, begin)
                    begin, left = begin + num, left[num:]

            _do_all(fetch_piece, range(0, size, _PIECE))
        finally:
            os.close(descriptor)
        if _version_of(store, self.key) != before:
            raise self._changed()

    def _changed(self) -> UserError:
        return UserError("was replaced while it was read", where=self.url, fix="read it again")

    def _send_file(self, store: Any, source: Path) -> None:
        store.put_file(str(source), self.key)
        size = int(store.info(self.key)["size"])
        if size != source.stat().st_size:
            raise OSError(f"the store holds {size:,} bytes of {source.stat().st_size:,}")

    def _store(self) -> Any:
        try:
            fsspec = importlib.import_module("fsspec")
        except ImportError as error:
            raise find_missing_dependency(error, where=self.url) or error from error
        try:
            return fsspec.filesystem(self.protocol, use_listings_cache=False)
        except ImportError as error:
            driver = DRIVERS[self.protocol]
            raise MissingDependency(
                f"{self.protocol}:// needs {driver}, which is not installed",
                where=self.url,
                fix=f"pip install {driver}",
            ) from error

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """Raise a UserError in place of the errors of a store, which are of many types."""
        try:
            yield
        except (UserError, MemoryError):
            raise
        except Exception as error:
            raise UserError(
                f"{what}: {describe_error(error)}",
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
    """Yield the local path, or the path of a copy that is deleted when the context ends. UserError as by `Remote.fetch`."""
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
