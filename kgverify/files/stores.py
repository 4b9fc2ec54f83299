"""The clients of object stores, each with the few methods of a file system of fsspec that kgverify calls."""

import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

from kgverify.errors import find_missing_dependency

DRIVERS: Final = {
    "s3": "obstore",
    "gs": "obstore",
    "gcs": "obstore",
    "az": "obstore",
    "abfs": "obstore",
    "abfss": "obstore",
    "memory": "fsspec",
}
"""The stores that replace an object at once, and the package that knows each."""

Buffer = bytes | memoryview

_READ_PIECE: Final = 1 << 18
"""Bytes that are taken from a stream at once: few enough to stay in the cache of the processor until they are written."""
_SENT_PIECE: Final = 8 << 20
_MOST_PIECES: Final = 10_000
"""The most pieces of an object, in every store."""
_AT_ONCE: Final = 4
"""Pieces of one object that are sent at the same time."""
_CLIENT: Final = {"allow_http": True, "timeout": "1h", "connect_timeout": "5s", "read_timeout": "5m"}
"""A request may take long where the network is slow, but not stand still. Whoever gives an http:// endpoint wants it."""
_OPTIONS: Final = {"s3": {"disable_bulk_delete": True}}
"""Options by protocol. Some servers answer a request that deletes several objects in a form of their own."""
_STATUS: Final = re.compile(r"status code: (\d{3}[^:\n]*)")
_DETAIL: Final = re.compile(r"<(Code|Message)>(.*?)</\1>", re.DOTALL)


class CloudStore:
    """The objects of one bucket. A key is `bucket/folder/name`.

    client: a store of obstore
    """

    def __init__(self, client: Any) -> None:
        self._obstore = importlib.import_module("obstore")
        self._client = client

    def info(self, key: str) -> dict[str, Any]:
        """Describe a file or folder. FileNotFoundError if neither exists."""
        path = _path_of(key)
        try:
            if path:
                found = self._obstore.head(self._client, path)
                return {
                    "type": "file",
                    "size": found["size"],
                    "ETag": found["e_tag"],
                    "LastModified": found["last_modified"],
                }
        except FileNotFoundError:
            pass
        if not self.ls(key):
            raise FileNotFoundError(key)
        return {"type": "directory", "size": 0}

    def exists(self, key: str) -> bool:
        """Return whether there is a file or folder."""
        return bool(self._find_type(key))

    def isdir(self, key: str) -> bool:
        """Return whether there is a folder."""
        return self._find_type(key) == "directory"

    def ls(self, key: str, *, detail: bool = True) -> list[dict[str, Any]]:
        """List the files and folders of a folder, but not itself, which some stores hold as an empty object."""
        bucket, path = key.partition("/")[0], _path_of(key)
        found = self._obstore.list_with_delimiter(self._client, path or None)
        files = [
            {"name": f"{bucket}/{each['path']}", "type": "file", "size": each["size"]}
            for each in found["objects"]
            if each["path"] != path
        ]
        return files + [
            {"name": f"{bucket}/{prefix}", "type": "directory", "size": 0} for prefix in found["common_prefixes"]
        ]

    def stream(self, key: str, start: int, end: int) -> Iterator[memoryview]:
        """Yield bytes of an object as they arrive: all there are, if it ends before `end`."""
        found = self._obstore.get(self._client, _path_of(key), options={"range": (start, end)})
        return map(memoryview, found.stream(min_chunk_size=_READ_PIECE))

    def pipe_file(self, key: str, content: bytes) -> None:
        """Replace an object by a small one."""
        self._obstore.put(self._client, _path_of(key), content)

    def put_file(self, source: str, key: str) -> None:
        """Replace an object by a local file; a large one is sent in pieces, of which few are in memory."""
        path = Path(source)
        piece = max(_SENT_PIECE, -(-path.stat().st_size // _MOST_PIECES))
        self._obstore.put(self._client, _path_of(key), path, chunk_size=piece, max_concurrency=_AT_ONCE)

    def rm_file(self, key: str) -> None:
        """Delete an object."""
        self._obstore.delete(self._client, _path_of(key))

    def _find_type(self, key: str) -> str:
        """Return the type of `info`; empty if there is neither a file nor a folder."""
        try:
            return str(self.info(key)["type"])
        except FileNotFoundError:
            return ""


def open_store(protocol: str, key: str) -> Any:
    """Return the client for an object, with what the environment says. MissingDependency if its package is missing."""
    try:
        if DRIVERS[protocol] == "fsspec":
            return importlib.import_module("fsspec").filesystem(protocol)
        return _open_bucket(protocol, key.partition("/")[0])
    except ImportError as error:
        raise find_missing_dependency(error, where=f"{protocol}://{key}") or error from error


def stream(store: Any, key: str, start: int, end: int) -> Iterator[Buffer]:
    """Yield bytes of an object: all there are, if it ends before `end`."""
    if isinstance(store, CloudStore):
        return store.stream(key, start, end)
    return iter([store.cat_file(key, start=start, end=end)])


def describe_answer(error: BaseException) -> str:
    """Return what a store answered to a request that failed; empty if that is not known."""
    text = str(error)
    status = _STATUS.search(text)
    details = dict(_DETAIL.findall(text))
    return ", ".join(filter(None, [status and status[1].strip(), details.get("Code"), details.get("Message")]))


@cache
def _open_bucket(protocol: str, bucket: str) -> CloudStore:
    """Open a bucket once, so that its connections are used again."""
    url = f"{'gs' if protocol == 'gcs' else protocol}://{bucket}"
    open_url = importlib.import_module("obstore.store").from_url
    return CloudStore(open_url(url, client_options=_CLIENT, **_OPTIONS.get(protocol, {})))


def _path_of(key: str) -> str:
    """Return the path of an object in its bucket."""
    return key.partition("/")[2]
