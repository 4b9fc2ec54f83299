"""Object stores: a bucket of obstore answers as the file system of fsspec in memory does."""

import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from kgverify import UserError
from kgverify.errors import MissingDependency
from kgverify.files.remote import Remote, describe_answer, find_remote

pytest.importorskip("fsspec", reason="kgverify[storage] is not installed")
obstore = pytest.importorskip("obstore", reason="kgverify[storage] is not installed")


@pytest.fixture(params=["obstore", "fsspec"])
def client(request: pytest.FixtureRequest, store: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An empty store of each package, which `Remote` uses."""
    if request.param == "obstore":
        from obstore.fsspec import FsspecStore

        store, bucket = FsspecStore("memory"), obstore.store.MemoryStore()
        store._construct_store = lambda name: bucket
        monkeypatch.setattr(Remote, "open_store", lambda self: store)
    return store


def test_a_bucket_has_files_and_folders(client: Any) -> None:
    for name in ("a b/one", "a b/deep/two", "a bc"):
        client.pipe_file(f"bucket/{name}", name.encode())
    assert find("memory://bucket/a b").list_files() == {"one": 7}
    assert find("memory://bucket/a bc").list_files() == find("memory://bucket/a").list_files() == {}
    assert [find(f"memory://bucket/{name}").exists() for name in ("a b", "a bc", "a")] == [True, True, False]
    client.rm_file("bucket/a bc")
    assert not find("memory://bucket/a bc").exists()


@pytest.mark.parametrize("size", [0, 5, (16 << 20) + 5])
def test_a_file_is_sent_and_fetched(client: Any, tmp_path: Path, size: int) -> None:
    content = (bytes(range(251)) * (size // 251 + 1))[:size]
    (tmp_path / "file").write_bytes(content)
    remote = find("memory://bucket/copy")
    remote.send(tmp_path / "file")
    assert remote.fetch(tmp_path).read_bytes() == content


@pytest.mark.parametrize("is_folder", [True, False])
def test_a_file_and_a_folder_replace_each_other(client: Any, tmp_path: Path, is_folder: bool) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "manifest").write_text("1")
    (tmp_path / "file").write_text("2")
    remote = find("memory://bucket/run")
    for name in ("file", "folder") if is_folder else ("folder", "file"):
        remote.send(tmp_path / name, last="manifest")
        # fsspec remembers a folder in memory after its last file is gone.
        getattr(client, "pseudo_dirs", []).clear()
    assert remote.list_files() == ({"manifest": 1} if is_folder else {})
    assert remote.exists()


def test_a_folder_that_is_an_empty_object_is_not_among_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    class Listing:
        def info(self, key: str) -> dict[str, Any]:
            return {"type": "directory", "size": 0}

        def ls(self, key: str, *, detail: bool) -> list[dict[str, Any]]:
            return [{"name": name, "type": "file", "size": 1} for name in ("bucket/run", "bucket/run/a")]

    monkeypatch.setattr(Remote, "open_store", lambda self: Listing())
    assert find("s3://bucket/run").list_files() == {"a": 1}


@pytest.mark.parametrize("url", ["s3://bucket/a", "gs://bucket/a", "gcs://bucket/a", "memory://bucket/a"])
def test_a_store_that_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    remote = find(url)
    package = "fsspec" if remote.protocol == "memory" else "obstore"
    for name in [each for each in sys.modules if each.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [each for each in sys.meta_path if not hasattr(each, "invalidate_caches")])
    with pytest.raises(MissingDependency, match="object stores need") as caught:
        remote.exists()
    assert (caught.value.where, caught.value.fix) == (url, "pip install 'kgverify[storage]'")


@pytest.mark.parametrize("protocol", ["gs", "gcs", "az", "abfs", "abfss"])
def test_each_protocol_opens_a_bucket(monkeypatch: pytest.MonkeyPatch, protocol: str) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    assert find(f"{protocol}://bucket/a").open_store()._construct_store("bucket") is not None


def find(url: str) -> Remote:
    remote = find_remote(url)
    assert remote is not None
    return remote


REFUSAL = b"<Error><Code>NoSuchBucket</Code><Message>The bucket does not exist</Message></Error>"


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The requests to a server at `s3://` that refuses all."""
    from obstore.fsspec import FsspecStore

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
    FsspecStore.clear_instance_cache()
    yield found
    FsspecStore.clear_instance_cache()
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
