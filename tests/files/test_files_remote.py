"""Graphs and traces at URLs: the same checks as on disk, errors that name the URL, and two packages that answer alike."""

import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from invoked_commands import invoke

import kgverify as kv
from kgverify import UserError
from kgverify.errors import MissingDependency
from kgverify.files import remote as remote_files
from kgverify.files.remote import Remote, fetched, find_local, find_remote
from kgverify.files.writing import make_folders, write_file

pytest.importorskip("fsspec", reason="kgverify[storage] is not installed")
SMALL: dict[str, Any] = {"queries": 2, "corruptions": 3}


@pytest.fixture(params=["obstore", "fsspec"])
def client(request: pytest.FixtureRequest, store: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An empty store of each package, which `Remote` uses."""
    if request.param == "obstore":
        obstore = pytest.importorskip("obstore", reason="kgverify[storage] is not installed")
        from obstore.fsspec import FsspecStore

        store, bucket = FsspecStore("memory"), obstore.store.MemoryStore()
        store._construct_store = lambda name: bucket
        monkeypatch.setattr(Remote, "open_store", lambda self: store)
    return store


def find(url: str) -> Remote:
    remote = find_remote(url)
    assert remote is not None
    return remote


def test_a_graph_is_the_same_at_a_url(store: Any, tmp_path: Path) -> None:
    make_folders(tmp_path / "tiny")
    for name, text in (("train.txt", "p(a,b).\np(b,c).\n"), ("test.txt", "p(a,c).\n"), ("rules.txt", "")):
        store.pipe_file(f"/bucket/tiny/{name}", text.encode())
        write_file(tmp_path / "tiny" / name, text)
    there, here = kv.load_graph("memory://bucket/tiny"), kv.load_graph(tmp_path / "tiny")
    assert (there.name, there.program.sha256) == (here.name, here.program.sha256)
    assert kv.load_graph(f"file://{tmp_path}/tiny").program.sha256 == here.program.sha256
    with pytest.raises(UserError, match="no such file") as caught:
        kv.load_graph("memory://bucket/tin")
    assert caught.value.where == "memory://bucket/tin"


@pytest.mark.parametrize("shard_steps", [1_000_000, 20])
def test_a_trace_is_recorded_checked_and_compared_at_a_url(store: Any, tmp_path: Path, shard_steps: int) -> None:
    options = kv.RecordingOptions(shard_steps=shard_steps, overwrite=True)
    url = "memory://bucket/a.h5"
    kv.record("countries", tmp_path / "a.h5", "reference", **SMALL, options=options)
    for path in (url, Path(url)):
        assert kv.record("countries", path, "reference", **SMALL, options=options).path == url
    with pytest.raises(UserError, match="exists already"):
        kv.record("countries", url, "reference", **SMALL)
    done = invoke(["trace", "check", url])
    assert (done.exit_code, f"{url}: whole" in done.output) == (0, True)
    assert kv.open_trace(url).compute_root() == kv.open_trace(tmp_path / "a.h5").compute_root()
    report = kv.compare(tmp_path / "a.h5", url, equality=kv.Equality(minimum="none"))
    assert report.verdict.value == "AGREE"
    if shard_steps == 20:
        content = bytearray(store.cat_file("/bucket/a.h5/shard-00001.h5"))
        content[-9] ^= 1
        store.pipe_file("/bucket/a.h5/shard-00001.h5", bytes(content))
        with pytest.raises(UserError, match=r"altered|damaged") as caught:
            kv.open_trace(url)
        assert caught.value.where.startswith(f"{url}/shard-00001.h5")


@pytest.mark.parametrize(
    ("call", "url", "match"),
    [
        *((find_remote, url, "is not supported") for url in ("https://a/b", "zip://a::s3://b/c", "ssh://a/b")),
        *((find_remote, url, "expected a URL") for url in ("s3://", "s3://a/../b", "s3://a//b", "memory://a::s3://b")),
        (find_local, "file://host/a", "another machine"),
        (lambda url: write_file(Path(url), b""), "s3://bucket/a", "is a URL"),
        (make_folders, Path("s3://bucket/a"), "is a URL"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused(call: Callable[[Any], object], url: str, match: str) -> None:
    with pytest.raises(UserError, match=match):
        call(url)
    assert find_local("file:///a/b") == find_local(Path("file:///a/b")) == Path("/a/b")


def test_a_bucket_has_files_and_folders(client: Any) -> None:
    for name in ("a b/one", "a b/deep/two", "a bc"):
        client.pipe_file(f"bucket/{name}", name.encode())
    assert find("memory://bucket/a b").list_files() == {"one": 7}
    assert find("memory://bucket/a bc").list_files() == find("memory://bucket/a").list_files() == {}
    assert [find(f"memory://bucket/{name}").exists() for name in ("a b", "a bc", "a")] == [True, True, False]
    client.rm_file("bucket/a bc")
    assert not find("memory://bucket/a bc").exists()
    with fetched("memory://bucket/a b/one") as copy:
        assert copy.read_bytes() == b"a b/one"
    assert not copy.exists()


@pytest.mark.parametrize("size", [0, 1, 8, 9, 23])
def test_a_file_is_sent_and_fetched_in_pieces(client: Any, tmp_path: Path, monkeypatch: Any, size: int) -> None:
    monkeypatch.setattr(remote_files, "_PIECE", 8)
    (tmp_path / "file").write_bytes(bytes(range(size)))
    remote = find("memory://bucket/copy")
    remote.send(tmp_path / "file")
    assert remote.fetch(tmp_path).read_bytes() == bytes(range(size))


@pytest.mark.parametrize("last", ["folder", "file"])
def test_a_file_and_a_folder_replace_each_other(client: Any, tmp_path: Path, last: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "manifest").write_text("1")
    (tmp_path / "file").write_text("2")
    remote = find("memory://bucket/run")
    for name in ("file", "folder") if last == "folder" else ("folder", "file"):
        remote.send(tmp_path / name, last="manifest")
        # fsspec remembers a folder in memory after its last file is gone.
        getattr(client, "pseudo_dirs", []).clear()
    assert remote.list_files() == ({"manifest": 1} if last == "folder" else {})
    assert remote.exists()


def test_an_object_that_is_replaced_while_it_is_read_is_refused(store: Any, monkeypatch: Any) -> None:
    kind = type(store)
    info, read = kind.info, kind.cat_file

    def replace(self: Any, key: str, **options: Any) -> bytes:
        found: bytes = read(self, key, **options)
        self.pipe_file(key, b"b" * 12)
        return found

    monkeypatch.setattr(remote_files, "_PIECE", 8)
    store.pipe_file("/bucket/a", b"a" * 12)
    for name, change in (
        ("info", lambda *arguments, **options: info(*arguments, **options) | {"size": 11}),
        ("info", lambda *arguments, **options: info(*arguments, **options) | {"size": 13}),
        ("cat_file", replace),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(kind, name, change)
            with pytest.raises(UserError, match="was replaced"), fetched("memory://bucket/a"):
                pass


def test_files_are_sent_side_by_side_and_the_last_one_only_after_all_others(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "manifest"):
        write_file(tmp_path / name, name.encode())
    together, put, order = threading.Barrier(2), type(store).put_file, []
    remote, refused = find("memory://bucket/run"), {"b"}

    def put_together(self: Any, source: str, key: str, **options: Any) -> None:
        if not key.endswith("manifest"):
            # One after the other, they would wait forever.
            together.wait(timeout=20)
        if key[-1] in refused:
            raise PermissionError("read only")
        order.append(key[-1])
        put(self, source, key, **options)

    monkeypatch.setattr(type(store), "put_file", put_together)
    with pytest.raises(UserError, match="cannot be written"):
        remote.send(tmp_path, last="manifest")
    assert "manifest" not in remote.list_files()
    refused.clear()
    remote.send(tmp_path, last="manifest")
    assert (sorted(order[-3:-1]), order[-1]) == (["a", "b"], "t")
    assert remote.list_files() == {"a": 1, "b": 1, "manifest": 8}


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
    pytest.importorskip("obstore", reason="kgverify[storage] is not installed")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    assert find(f"{protocol}://bucket/a").open_store()._construct_store("bucket") is not None


REFUSAL = b"<Error><Code>NoSuchBucket</Code><Message>The bucket does not exist</Message></Error>"


def test_the_environment_names_server_and_key_and_an_error_says_what_it_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("obstore", reason="kgverify[storage] is not installed")
    from obstore.fsspec import FsspecStore

    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def refuse(self) -> None:
            requests.append(f"{self.command} {self.path} {self.headers['Authorization'].partition('/')[0]}")
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
    thread = Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "mine")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    FsspecStore.clear_instance_cache()
    remote = find("s3://bucket/a")
    asked: dict[str, Callable[[], object]] = {"read": remote.exists, "written": remote.check_writable}
    try:
        for what, ask in asked.items():
            with pytest.raises(UserError, match="404 Not Found, NoSuchBucket, The bucket does not exist") as caught:
                ask()
            assert caught.value.where.startswith("s3://bucket/a")
            assert caught.value.message.startswith(f"cannot be {what}: ")
    finally:
        FsspecStore.clear_instance_cache()
        server.shutdown()
        thread.join()
        server.server_close()
    assert requests
    assert all(" /bucket" in each and each.endswith("Credential=mine") for each in requests)
