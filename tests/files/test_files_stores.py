"""The clients of object stores: one bucket of obstore answers as the file system of fsspec in memory does."""

import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from kgverify.errors import MissingDependency, UserError
from kgverify.files import stores
from kgverify.files.remote import Remote, find_remote
from kgverify.files.stores import CloudStore, describe_answer, open_store, stream

pytest.importorskip("fsspec", reason="kgverify[storage] is not installed")
obstore = pytest.importorskip("obstore", reason="kgverify[storage] is not installed")


@pytest.fixture(params=["obstore", "fsspec"])
def client(request: pytest.FixtureRequest, store: Any) -> Any:
    """An empty store of each package, with the same methods."""
    return CloudStore(obstore.store.MemoryStore()) if request.param == "obstore" else store


def name_of(found: dict[str, Any]) -> str:
    return str(found["name"]).strip("/")


def test_a_bucket_has_files_and_folders(client: Any) -> None:
    for name in ("a b/one", "a b/deep/two", "a bc"):
        client.pipe_file(f"bucket/{name}", name.encode())
    assert {name_of(each): each["type"] for each in client.ls("bucket/a b", detail=True)} == {
        "bucket/a b/one": "file",
        "bucket/a b/deep": "directory",
    }
    assert (client.info("bucket/a b")["type"], client.info("bucket")["type"]) == ("directory", "directory")
    assert (client.info("bucket/a bc")["type"], client.info("bucket/a bc")["size"]) == ("file", 4)
    assert [client.isdir(f"bucket/{name}") for name in ("a b", "a bc", "a")] == [True, False, False]
    assert [client.exists(f"bucket/{name}") for name in ("a b", "a bc", "a")] == [True, True, False]
    with pytest.raises(FileNotFoundError):
        client.info("bucket/a")
    client.rm_file("bucket/a bc")
    assert not client.exists("bucket/a bc")


@pytest.mark.parametrize("size", [0, 5, (8 << 20) + 5])
def test_a_file_is_sent_and_streamed(client: Any, tmp_path: Path, size: int) -> None:
    content = (bytes(range(251)) * (size // 251 + 1))[:size]
    (tmp_path / "file").write_bytes(content)
    client.put_file(str(tmp_path / "file"), "bucket/file")
    assert client.info("bucket/file")["size"] == size
    for begin, end in ((0, size), (0, size + 1), (3, 5), (size - 2, size + 1)):
        if 0 <= begin < size:
            assert b"".join(stream(client, "bucket/file", begin, end)) == content[begin:end]


def test_a_folder_that_is_an_empty_object_is_not_among_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = {"objects": [{"path": "run", "size": 0}, {"path": "run/a", "size": 1}], "common_prefixes": []}
    monkeypatch.setattr(obstore, "list_with_delimiter", lambda *_: listed)
    found = CloudStore(obstore.store.MemoryStore()).ls("bucket/run")
    assert [each["name"] for each in found] == ["bucket/run/a"]


@pytest.mark.parametrize("url", ["s3://bucket/a", "gs://bucket/a", "gcs://bucket/a", "memory://bucket/a"])
def test_a_store_that_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    remote = find(url)
    monkeypatch.setitem(sys.modules, stores.DRIVERS[remote.protocol], None)
    stores._open_bucket.cache_clear()
    with pytest.raises(MissingDependency, match="object stores need") as caught:
        remote.exists()
    assert (caught.value.where, caught.value.fix) == (url, "pip install 'kgverify[storage]'")


@pytest.mark.parametrize("protocol", ["gs", "gcs", "az", "abfs", "abfss"])
def test_each_protocol_opens_a_bucket(monkeypatch: pytest.MonkeyPatch, protocol: str) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    stores._open_bucket.cache_clear()
    assert isinstance(open_store(protocol, "bucket/a"), CloudStore)
    stores._open_bucket.cache_clear()


def find(url: str) -> Remote:
    remote = find_remote(url)
    assert remote is not None
    return remote


REFUSAL = b"<Error><Code>NoSuchBucket</Code><Message>The bucket does not exist</Message></Error>"


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The requests to a server at `s3://` that refuses all."""
    found: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def refuse(self) -> None:
            found.append(f"{self.command} {self.path} {self.headers['Authorization'].partition('/')[0]}")
            self.rfile.read(int(self.headers["Content-Length"] or 0))
            self.send_response(404)
            self.send_header("Content-Length", str(len(REFUSAL)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(REFUSAL)

        do_GET = do_HEAD = do_PUT = do_DELETE = do_POST = refuse

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "mine")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    stores._open_bucket.cache_clear()
    yield found
    stores._open_bucket.cache_clear()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    "ask, what",
    [(Remote.exists, "read"), (Remote.check_writable, "written"), (lambda remote: remote.fetch(Path("/")), "read")],
)
def test_the_environment_names_server_and_key_and_an_error_says_what_it_answered(
    requests: list[str], ask: Callable[[Remote], object], what: str
) -> None:
    with pytest.raises(UserError, match="404 Not Found, NoSuchBucket, The bucket does not exist") as caught:
        ask(find("s3://bucket/a"))
    assert caught.value.where.startswith("s3://bucket/a")
    assert caught.value.message.startswith(f"cannot be {what}: ")
    assert all(" /bucket" in each and each.endswith("Credential=mine") for each in requests)


def test_an_error_without_an_answer_is_described_as_any_other() -> None:
    assert describe_answer(ValueError("no such thing")) == ""
