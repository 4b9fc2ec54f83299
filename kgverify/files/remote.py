"""Files in object stores, by URL: each is copied to or from a local folder, and checked there like any other file.

An object appears in its store whole or not at all. Several objects do not appear together, so the object that makes the others
valid, such as a manifest, is sent last. A URL always comes from a user: no file can name one.
"""

import importlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeVar

from kgverify.errors import UserError, describe_error, find_missing_dependency, show_path_as
from kgverify.files.code_identity import is_private
from kgverify.files.writing import explained, temporary_folder

T = TypeVar("T")

STORES: Final = ("s3", "gs", "gcs", "az", "abfs", "abfss", "memory")
"""The protocols of stores that replace an object atomically."""
_URL: Final = re.compile(rf"(?P<protocol>{'|'.join(STORES)}|file):/+(?P<rest>.*)", re.DOTALL)
"""A URL; a `Path` shortens its slashes to one."""
_OTHER: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_NAME: Final = re.compile(r"[^/\\\0]{1,255}")
_PIECE: Final = 16 << 20
"""The number of bytes requested from a store at once."""
_THREADS: Final = 8
_MOST_FILES: Final = 100_000
_CLIENT: Final = {"allow_http": True, "timeout": "1h", "connect_timeout": "5s", "read_timeout": "5m"}
"""A request may be slow, but must not stall. A user who gives an http:// endpoint wants it."""
_OPTIONS: Final = {"s3": {"disable_bulk_delete": True}}
"""Options by protocol. Some servers answer requests to delete several objects in a nonstandard form."""
_STATUS: Final = re.compile(r"status code: (\d{3}[^:\n]*)")
_DETAIL: Final = re.compile(r"<(Code|Message)>(.*?)</\1>", re.DOTALL)


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
        """Return whether the object or folder exists. UserError if the store does not answer."""
        with self._explained("cannot be read"):
            return bool(self._describe(self.open_store()))

    def list_files(self) -> dict[str, int]:
        """Return the names and sizes of a folder's files, without its folders; empty if the folder does not exist.

        UserError for a name that no file on a disk can have.
        """
        with self._explained("cannot be read"):
            store = self.open_store()
            is_folder = self._describe(store).get("type") == "directory"
            found = store.ls(self.key, detail=True) if is_folder else []
            # Some stores list the folder itself as an empty object.
            files = [each for each in found if each["type"] == "file" and each["name"].strip("/") != self.key]
            sizes = {each["name"].rpartition("/")[2]: int(each["size"] or 0) for each in files}
            if len(sizes) > _MOST_FILES:
                raise UserError(f"holds {len(sizes):,} files, expected at most {_MOST_FILES:,}", where=self.url)
            for name in sizes:
                if not _NAME.fullmatch(name) or name in (".", ".."):
                    raise UserError(f"holds a file with the name {name!r}", where=self.url, fix="rename it")
            return sizes

    def fetch(self, folder: Path) -> Path:
        """Copy a file, or the files of a folder, into a local folder, and return the path of the copy.

        Errors name the copy by its URL. UserError if it does not exist, cannot be read, or the disk is too small.
        """
        with self._explained("cannot be read"):
            store, copy = self.open_store(), folder / self.name
            info = self._describe(store)
            if not info:
                raise UserError("no such file or folder", where=self.url, fix="check the URL, and the credentials")
            files = {self: (copy, int(info["size"] or 0))}
            if is_folder := info["type"] == "directory":
                files = {self.join(name): (copy / name, size) for name, size in self.list_files().items()}
            total, free = sum(size for _, size in files.values()), shutil.disk_usage(folder).free
            if total > free:
                raise UserError(
                    f"takes {total:,} bytes, and {folder} has room for {free:,}",
                    where=self.url,
                    fix="make room, or let TMPDIR name a folder on a larger disk",
                )
            show_path_as(str(copy), self.url)
            if is_folder:
                copy.mkdir(exist_ok=True)
            _copy_files(store, files)
            return copy

    def send(self, source: Path, *, last: str = "") -> None:
        """Replace the object by a local file, or the objects of a folder by the files of a local folder.

        last: the name of the file without which a folder is invalid; it is deleted first, and sent after all others

        UserError if an object cannot be written.
        """
        with self._explained("cannot be written"):
            store, found = self.open_store(), {self.join(name) for name in self.list_files()}
            files = {self.join(path.name): path for path in source.iterdir()} if source.is_dir() else {self: source}
            if source.is_dir() and self._describe(store).get("type") == "file":
                found = {self}
            ending = self.join(last)
            for each in sorted((found - {*files}) | (found & {ending}), key=lambda each: each != ending):
                store.rm_file(each.key)
            _do_all(lambda each: each.send_file(files[each]), {*files} - {ending})
            if ending in files:
                ending.send_file(files[ending])

    def send_file(self, source: Path) -> None:
        """Do the same as `send` for a file that cannot replace a folder, but with fewer requests."""
        with self._explained("cannot be written"):
            store = self.open_store()
            store.put_file(str(source), self.key)
            size = int(store.info(self.key)["size"])
            if size != source.stat().st_size:
                raise OSError(f"the store holds {size:,} bytes of {source.stat().st_size:,}")

    def check_writable(self) -> None:
        """Raise the UserError that `send` would raise now, before a long run. Leave nothing behind."""
        key = f"{self.key}.kgverify-{os.urandom(8).hex()}"
        with self._explained("cannot be written"):
            store = self.open_store()
            store.pipe_file(key, b"")
            store.rm_file(key)

    def copy_piece(self, store: Any, target: Path, size: int, begin: int) -> None:
        """Copy some bytes into a file of this size. UserError if the object has a different size."""
        # Request one byte more than expected: a larger object must not look like the listed one.
        end = min(begin + _PIECE, size)
        content = store.cat_file(self.key, start=begin, end=end + (end == size))
        if len(content) != end - begin:
            raise self.changed()
        descriptor = os.open(target, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            while begin < end:
                begin += os.pwrite(descriptor, memoryview(content)[begin - end + len(content) :], begin)
        finally:
            os.close(descriptor)

    def _describe(self, store: Any) -> dict[str, Any]:
        """Return the type and size of an object or folder; an empty dictionary if it does not exist."""
        try:
            info: dict[str, Any] = store.info(self.key)
            return info
        except FileNotFoundError:
            return {}

    def changed(self) -> UserError:
        """Return the error for an object that was replaced."""
        return UserError("was replaced while it was read", where=self.url, fix="read it again")

    def open_store(self) -> Any:
        """Return fsspec's file system for the protocol, configured by the environment."""
        if self.protocol == "memory":
            return importlib.import_module("fsspec").filesystem("memory")
        protocol = "gs" if self.protocol == "gcs" else self.protocol
        make = importlib.import_module("obstore.fsspec").FsspecStore
        return make(protocol, client_options=_CLIENT, **_OPTIONS.get(protocol, {}))

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """Raise a UserError in place of a store's errors, which have many types, or for a missing package."""
        try:
            yield
        except (UserError, MemoryError):
            raise
        except Exception as error:
            if isinstance(error, ImportError) and (missing := find_missing_dependency(error, where=self.url)):
                raise missing from error
            raise UserError(
                f"{what}: {describe_answer(error) or describe_error(error)}",
                where=self.url,
                fix="check the URL, the network, and the credentials of this store in the environment",
            ) from error


def describe_answer(error: BaseException) -> str:
    """Return a store's answer to a failed request; empty if it is unknown."""
    text = str(error)
    status = _STATUS.search(text)
    details = dict(_DETAIL.findall(text))
    return ", ".join(filter(None, [status and status[1].strip(), details.get("Code"), details.get("Message")]))


def find_remote(path: object) -> Remote | None:
    """Return the object that a URL names; None for a local path, including `file://`. UserError for any other URL."""
    text = str(path) if isinstance(path, (str, Path)) else ""
    found = _URL.fullmatch(text)
    if found is None:
        if _OTHER.match(text):
            protocol = text.partition("://")[0]
            raise UserError(
                f"{protocol}:// is not supported",
                where=text,
                fix=f"copy it to a local path, or to one of: file, {', '.join(STORES)}",
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
    """Return whether a path is a URL, including `file://`. UserError as for `find_remote`."""
    return find_remote(path) is not None or _URL.fullmatch(str(path)) is not None


def find_local(path: str | Path) -> Path:
    """Return a local path, also if it was given as `file://`. UserError for a URL of another machine."""
    found = _URL.fullmatch(str(path))
    if found is None or found["protocol"] != "file":
        return Path(path)
    if isinstance(path, str) and path.startswith("file://") and not path.startswith(("file:///", "file://localhost/")):
        raise UserError("names another machine", where=path, fix="give file:///FOLDER/NAME")
    return Path("/" + found["rest"].removeprefix("localhost/") if isinstance(path, str) else "/" + found["rest"])


@contextmanager
def fetched(path: str | Path) -> Iterator[Path]:
    """Yield the local path, or the path of a copy that is deleted when the context ends. UserError as for `Remote.fetch`.

    A copy is not forced to disk, so a copy that is soon deleted may stay in the system's cache in memory.
    """
    remote = find_remote(path)
    if remote is None:
        yield find_local(path)
        return
    with temporary_folder("kgverify-copy-") as folder:
        yield remote.fetch(folder)


@contextmanager
def sent_to(remote: Remote, last: str) -> Iterator[Path]:
    """Yield a local path to fill. When the context ends without an error, send its content as `Remote.send` does.

    The path is in a folder of this user, which is deleted if no error leaves the context. The same URL always has the same
    folder, so an interrupted command can resume on the same machine.
    """
    name = f"kgverify-{os.getuid()}-{sha256(remote.url.encode()).hexdigest()[:16]}"
    folder = Path(tempfile.gettempdir()) / name
    with explained(folder):
        folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or not is_private(folder):
        raise UserError(
            "is in the way, and is not a private folder of this user",
            where=str(folder),
            fix="delete it, or let TMPDIR name a folder of your own",
        )
    yield folder / remote.name
    remote.send(folder / remote.name, last=last)
    shutil.rmtree(folder, ignore_errors=True)


def _copy_files(store: Any, files: Mapping[Remote, tuple[Path, int]]) -> None:
    """Copy objects to new files of these sizes, several pieces at a time. UserError if an object changes meanwhile."""
    for target, _ in files.values():
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    # A single request returns a single version of an object.
    before = {remote: _version_of(store, remote.key) for remote, (_, size) in files.items() if size > _PIECE}
    pieces = [(remote, *file, begin) for remote, file in files.items() for begin in range(0, file[1], _PIECE)]
    _do_all(lambda piece: piece[0].copy_piece(store, *piece[1:]), pieces)
    for remote, version in before.items():
        if _version_of(store, remote.key) != version:
            raise remote.changed()


def _version_of(store: Any, key: str) -> tuple[Any, ...]:
    """Return properties that change if an object is replaced."""
    info = store.info(key)
    return tuple(str(info.get(name)) for name in ("size", "e_tag", "last_modified", "created"))


def _do_all(work: Callable[[T], None], items: Iterable[T]) -> None:
    """Do the work on several items at the same time. Raise the first error when all work has ended."""
    with ThreadPoolExecutor(_THREADS) as executor:
        for _ in executor.map(work, items):
            pass
